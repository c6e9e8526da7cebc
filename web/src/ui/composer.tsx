import type { RefObject } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { isAnySet } from "../chat/settings";
import { isUnderWay } from "../chat/tree";
import { strings } from "../strings";
import { AttachButton, Files } from "./attachments";
import { usePage } from "./context";
import { isComposed } from "./keys";

const NEARLY_FULL = 0.8; // of the context

export function Composer({ prompt, onSettings }: { prompt: RefObject<HTMLTextAreaElement | null>; onSettings: () => void }) {
  const { chats, session, answers } = usePage();
  const { draft, draftFiles: files } = chats.current.value;
  const leaf = chats.path.value.at(-1);
  const answer = leaf && isUnderWay(leaf) && answers.isGrowing(leaf.id) ? leaf.id : null;
  const isElsewhere = leaf !== undefined && isUnderWay(leaf) && answer === null;
  const canSend = session.link.value === "open" && !isElsewhere && (draft.trim() !== "" || files.length > 0);
  useLayoutEffect(() => {
    const area = prompt.current;
    if (!area) return;
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight}px`;
  }, [draft]);
  const send = (): void => {
    if (!canSend || answer) return;
    const id = chats.currentId.value;
    if (!answers.ask(draft, files)) return;
    chats.dispatch(id, { type: "draft", text: "" });
    chats.dispatch(id, { type: "draftFiles", files: [] });
  };
  return (
    <footer>
      <Problem />
      <Files files={files} onRemove={(index) => {
        chats.dispatch(chats.currentId.value, { type: "draftFiles", files: files.filter((_, other) => other !== index) });
      }} />
      <form id="composer" class="composer" onSubmit={(event) => { event.preventDefault(); send(); }}>
        <SettingsButton onPress={onSettings} />
        <AttachButton />
        <label class="hidden" for="prompt">{strings.prompt}</label>
        <textarea id="prompt" ref={prompt} rows={1} dir="auto" placeholder={strings.placeholder} autocomplete="off" enterkeyhint="send"
          value={draft}
          onInput={(event) => { chats.dispatch(chats.currentId.value, { type: "draft", text: event.currentTarget.value }); }}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || isComposed(event)) return;
            event.preventDefault();
            send();
          }} />
        {answer ? (
          <button key="stop" id="stop" class="action" type="button" aria-label={strings.stop} disabled={answers.stopping.value.has(answer)}
            onClick={() => { answers.stop(answer); }}>
            <svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true"><rect x="5" y="5" width="14" height="14" rx="2.5" /></svg>
          </button>
        ) : (
          <button key="send" id="send" class="action" type="submit" aria-label={strings.send} disabled={!canSend}>
            <svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true"><path d="M12 20V5m0 0-6 6m6-6 6 6" /></svg>
          </button>
        )}
      </form>
      <Status />
    </footer>
  );
}

// What keeps a question from being asked, and what can be done about it.
function Problem() {
  const { chats, answers } = usePage();
  const problem = answers.problem.value;
  const chat = chats.currentId.value;
  if (!problem || (problem.chat ?? chat) !== chat) return null;
  const { text, start } = problem;
  return (
    <p id="problem" class="problem" role="alert">
      {text}{" "}
      {start && (
        <button type="button" class="quiet" onClick={() => {
          chats.dispatch(chat, { type: "trim", start });
          answers.problem.value = null;
        }}>{strings.leaveOutOlder}</button>
      )}
    </p>
  );
}

function SettingsButton({ onPress }: { onPress: () => void }) {
  const { chats } = usePage();
  const isSet = isAnySet(chats.current.value.settings);
  const label = isSet ? strings.settingsAreSet : strings.settingsButton;
  return (
    <button id="settings-button" class={isSet ? "tool is-set" : "tool"} type="button" aria-haspopup="dialog" aria-label={label}
      title={label} onClick={onPress}>
      <svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true">
        <path d="M3 8h9m6 0h3M3 16h3m6 0h9" /><circle cx="15" cy="8" r="2.6" /><circle cx="9" cy="16" r="2.6" />
      </svg>
    </button>
  );
}

function Status() {
  const { chats, session, answers } = usePage();
  const link = session.link.value;
  const used = chats.path.value.findLast(({ statistics }) => statistics)?.statistics?.contextTokens;
  const limit = session.health.value?.max_context;
  const share = used && limit ? Math.min(1, used / limit) : null;
  const isFull = share !== null && share >= NEARLY_FULL;
  const text = { open: "", connecting: strings.connecting, silent: strings.silent, barred: strings.keyNeeded }[link];
  const storage = chats.problem.value;
  return (
    <p class="status">
      <span id="status" role="status" class={text || isFull || storage ? "problem" : ""}>
        {text || (storage && strings.notKept(storage)) || (isFull ? strings.contextNearlyFull(share) : "")}
      </span>
      {link === "barred" && (
        <button type="button" class="quiet" onClick={() => { session.keyWanted.value = { hadKey: false }; }}>{strings.enterKey}</button>
      )}
      {share !== null && !isFull && <span id="context">{strings.context(share)}</span>}
      <span id="speed">{answers.speed.value}</span>
    </p>
  );
}
