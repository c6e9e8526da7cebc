import { useLayoutEffect, useRef } from "preact/hooks";
import type { RefObject } from "preact";
import { childNames, isUnderWay, startIndex, unanswered } from "../chat/tree";
import type { Message } from "../chat/tree";
import { strings } from "../strings";
import { usePage } from "./context";
import { MessageView } from "./message";

export function Log({ scroller }: { scroller: RefObject<HTMLElement | null> }) {
  const { chats, session, answers } = usePage();
  const chat = chats.current.value;
  const path = chats.path.value;
  usePinnedScroll(scroller, chats.currentId.value, path);
  if (!path.length) {
    return (
      <section id="welcome" class="welcome">
        <h2>{strings.welcome}</h2>
        <p>{strings.privacy}</p>
        {session.health.value?.chat_template === false ? (
          <p id="no-template">{strings.noTemplate}</p>
        ) : (
          <div class="examples">
            {strings.examples.map((text) => (
              <button key={text} type="button" class="example" disabled={session.link.value !== "open"} onClick={() => answers.ask(text)}>
                {text}
              </button>
            ))}
          </div>
        )}
      </section>
    );
  }
  const children = childNames(chat);
  const without = unanswered(path);
  const start = startIndex(chat, path);
  return (
    <div id="log" class="log" role="log" aria-live="polite" aria-label={strings.conversation}>
      {/* By what they answer, so that what changes from one version to another stays under the keyboard. */}
      {path.map((message, index) => (
        <div key={message.parent ?? chat.id} class={index < start ? "turn left-out" : "turn"}>
          {index === start && <LeftOut />}
          <MessageView
            message={message}
            isUnanswered={without.has(message.id) && !path[index + 1]?.calls}
            isLast={index === path.length - 1}
            switchedTo={switchedTo(path, index)}
            versions={children.get(message.parent)?.join(" ") ?? message.id}
          />
        </div>
      ))}
    </div>
  );
}

function LeftOut() {
  const { chats } = usePage();
  return (
    <p class="switched">
      {strings.leftOut}{" "}
      <button type="button" class="quiet" onClick={() => { chats.dispatch(chats.currentId.value, { type: "trim", start: null }); }}>
        {strings.sendAll}
      </button>
    </p>
  );
}

// The model that answers, once it does, where the one before was another.
function switchedTo(path: readonly Message[], index: number): string | null {
  const message = path[index];
  if (!message?.text || message.role !== "assistant" || !message.model) return null;
  const before = path.slice(0, index).findLast(({ role, model, text }) => role === "assistant" && model && text);
  return before && before.model !== message.model ? message.model : null;
}

// Stays at the end while the conversation grows, until the reader scrolls up; a question that is asked brings it there.
function usePinnedScroll(scroller: RefObject<HTMLElement | null>, chat: string, path: readonly Message[]): void {
  const isPinned = useRef(true);
  const shown = useRef("");
  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return;
    let last = element.scrollTop;
    const scrolled = (): void => {
      const end = element.scrollHeight - element.clientHeight;
      if (element.scrollTop < last - 1 && element.scrollTop < end - 2) isPinned.current = false;
      else if (element.scrollTop >= end - 2) isPinned.current = true;
      last = element.scrollTop;
    };
    element.addEventListener("scroll", scrolled, { passive: true });
    return () => { element.removeEventListener("scroll", scrolled); };
  }, []);
  useLayoutEffect(() => {
    const leaf = path.at(-1);
    const key = `${chat} ${leaf && isUnderWay(leaf) ? leaf.id : ""}`;
    if (key !== shown.current && !key.endsWith(" ")) isPinned.current = true;
    shown.current = key;
    const element = scroller.current;
    if (element && isPinned.current) element.scrollTop = element.scrollHeight;
  });
}
