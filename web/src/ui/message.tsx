import type { RefObject } from "preact";
import { memo } from "preact/compat";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { partsOf } from "../chat/reasoning";
import { isUnderWay, saidIn } from "../chat/tree";
import type { Message } from "../chat/tree";
import { copyText } from "../text/code_block";
import { MarkdownView } from "../text/markdown";
import { strings } from "../strings";
import { Files } from "./attachments";
import { Calls } from "./calls";
import { usePage } from "./context";
import { useFocusBack } from "./focus";
import { JsonView } from "./json_view";
import { isEscape } from "./keys";
import { Climb } from "./load_view";

export interface MessageProps {
  message: Message;
  isUnanswered: boolean;
  isLast: boolean;
  switchedTo: string | null; // the model, where the answer before was another one's
  versions: string; // ids, this message's among them; one text, so that nothing is rendered again where nothing differs
}

export const MessageView = memo(function MessageView(props: MessageProps) {
  const { message, isUnanswered } = props;
  const { edited } = usePage();
  const isEdited = edited.value === message.id;
  const setEdited = (is: boolean): void => { edited.value = is ? message.id : null; };
  const area = useRef<HTMLTextAreaElement>(null);
  const edit = useRef<HTMLButtonElement>(null);
  useFocusBack(isEdited, area, edit);
  const isUser = message.role === "user";
  return (
    <>
      {props.switchedTo && <p class="switched">{strings.answersNow(props.switchedTo)}</p>}
      <article class={`message ${message.role}`} {...(isUnderWay(message) && { "aria-busy": true })}>
        <span class="hidden">{isUser ? strings.you : strings.model}</span>
        {isEdited ? (
          <Editor key={message.id} area={area} message={message} onEnd={() => { setEdited(false); }} />
        ) : isUser ? (
          <>
            <Files files={message.files ?? []} />
            {message.text && <div class="body" dir="auto">{message.text}</div>}
          </>
        ) : (
          <Answer key={message.id} message={message} />
        )}
        {isUnanswered && <p class="note">{strings.unanswered}</p>}
        <Interrupted message={message} />
        <Ending message={message} isLast={props.isLast} />
        {!isEdited && !isUnderWay(message) && <Actions {...props} edit={edit} onEdit={() => { setEdited(true); }} />}
      </article>
    </>
  );
});

function Answer({ message }: { message: Message }) {
  const { session } = usePage();
  const body = useRef<HTMLDivElement>(null);
  const view = useRef<MarkdownView | null>(null);
  const isWaiting = message.state === "waiting";
  const { reasoning, answer, isThinking } = partsOf(message.text);
  useLayoutEffect(() => {
    if (!body.current || !answer) return;
    view.current ??= new MarkdownView(body.current);
    view.current.show(answer);
    if (!isUnderWay(message)) view.current.end();
  }, [message.text, message.state]);
  const isLoading = ["waiting", "closing", "opening", "loading"].includes(session.model.value?.status ?? "");
  return isWaiting ? (
    <div key="waiting" class="body"><span class="waiting">{isLoading ? strings.waiting : ""}</span><Climb response={message.response} /></div>
  ) : (
    <>
      {(reasoning || isThinking) && (
        <Reasoning text={reasoning} isGrowing={isThinking && isUnderWay(message)} seconds={message.statistics?.thoughtSeconds} />
      )}
      {message.isJson ? (
        answer && <JsonView json={answer} isGrowing={isUnderWay(message)} />
      ) : (
        <div key="text" class="body" ref={body} />
      )}
      {message.calls && <Calls calls={message.calls} isGrowing={isUnderWay(message)} />}
    </>
  );
}

// Folded; rendered when somebody looks.
function Reasoning({ text, isGrowing, seconds }: { text: string; isGrowing: boolean; seconds: number | undefined }) {
  const [isOpen, setOpen] = useState(false);
  const body = useRef<HTMLDivElement>(null);
  const view = useRef<MarkdownView | null>(null);
  useLayoutEffect(() => {
    if (!body.current || !isOpen || !text) return;
    view.current ??= new MarkdownView(body.current);
    view.current.show(text);
    if (!isGrowing) view.current.end();
  }, [text, isOpen, isGrowing]);
  const title = isGrowing ? strings.thinking : seconds === undefined ? strings.thought : strings.thoughtFor(seconds);
  return (
    <details class="reasoning" onToggle={(event) => { setOpen(event.currentTarget.open); }}>
      <summary><span class={isGrowing ? "waiting" : ""}>{title}</span></summary>
      <div class="body" ref={body} />
    </details>
  );
}

// An answer goes on at the server while nothing can come from there.
function Interrupted({ message }: { message: Message }) {
  const { session, answers } = usePage();
  if (session.link.value === "open" || !isUnderWay(message) || !answers.isGrowing(message.id)) return null;
  return <p class="note">{strings.interrupted}</p>;
}

// How an answer ended, where it did not end by itself, and what can be done then.
function Ending({ message, isLast }: { message: Message; isLast: boolean }) {
  const { session, answers, edited } = usePage();
  const { id, state, error, code } = message;
  const isTooLong = code === "context_length_exceeded";
  const text = saidIn(message);
  if (message.role === "user" || isUnderWay(message)) return null;
  const note = {
    done: text || message.calls ? "" : strings.empty,
    truncated: strings.truncated,
    stopped: strings.stopped,
    failed: strings.failed(error ?? strings.unknownError),
    lost: strings.lost,
    waiting: "",
    streaming: "",
  }[state];
  if (!note) return null;
  const isProblem = state === "failed" || state === "lost";
  const isOpen = session.link.value === "open";
  return (
    <div class={`note ${isProblem ? "problem" : ""}`}>
      <span>{note}</span>
      {isLast && (
        <span class="ways">
          {isTooLong && (answers.canTrim(id) ? (
            <button type="button" class="quiet" disabled={!isOpen} onClick={() => { answers.trimAndRetry(id); }}>{strings.leaveOut}</button>
          ) : (
            <>
              <span>{strings.questionTooLong}</span>
              <button type="button" class="quiet" onClick={() => { edited.value = message.parent; }}>{strings.edit}</button>
            </>
          ))}
          {text && state !== "failed" && (
            <button type="button" class="quiet" disabled={!isOpen} onClick={() => answers.ask(strings.goOnText)}>{strings.goOn}</button>
          )}
          <button type="button" class="quiet" disabled={!isOpen} onClick={() => answers.retry(id)}>{strings.askAgain}</button>
        </span>
      )}
    </div>
  );
}

function Actions(props: MessageProps & { edit: RefObject<HTMLButtonElement | null>; onEdit: () => void }) {
  const { chats, session, notice, answers } = usePage();
  const { message } = props;
  const versions = props.versions.split(" ");
  const index = versions.indexOf(message.id);
  const chat = chats.currentId.value;
  const select = (id: string | undefined): void => {
    if (id) chats.dispatch(chat, { type: "select", message: id });
  };
  const remove = (): void => { notice.show(strings.messageDeleted, answers.remove(chat, message.id)); };
  const isOpen = session.link.value === "open";
  const { statistics } = message;
  return (
    <div class="actions">
      {versions.length > 1 && (
        <span class="versions">
          <button type="button" aria-label={strings.previous} aria-disabled={index === 0} onClick={() => { select(versions[index - 1]); }}>‹</button>
          <span>{strings.version(index + 1, versions.length)}</span>
          <button type="button" aria-label={strings.next} aria-disabled={index === versions.length - 1} onClick={() => { select(versions[index + 1]); }}>›</button>
        </span>
      )}
      {saidIn(message) && <CopyButton key={message.id} text={saidIn(message)} />}
      {message.role === "user" ? (
        <button type="button" ref={props.edit} onClick={props.onEdit}>{strings.edit}</button>
      ) : message.state === "done" && (message.text || message.calls) && (
        <button type="button" disabled={!isOpen} onClick={() => answers.retry(message.id)}>{strings.askAgain}</button>
      )}
      <button type="button" onClick={remove}>{strings.delete}</button>
      {statistics && <span class="rate">{strings.statistics(statistics)}</span>}
    </div>
  );
}

function CopyButton({ text }: { text: string }) {
  const [label, setLabel] = useState(strings.copy);
  const copy = async (): Promise<void> => {
    setLabel((await copyText(text)) ? strings.copied : strings.copyFailed);
    setTimeout(() => { setLabel(strings.copy); }, 1500);
  };
  return <button type="button" aria-label={label === strings.copy ? strings.copyAnswer : label} onClick={() => void copy()}>{label}</button>;
}

function Editor({ area, message, onEnd }: { area: RefObject<HTMLTextAreaElement | null>; message: Message; onEnd: () => void }) {
  const { session, answers } = usePage();
  const [text, setText] = useState(message.text);
  const [files, setFiles] = useState(message.files ?? []);
  const isEmpty = !text.trim() && !files.length;
  return (
    <form class="editor" onSubmit={(event) => {
      event.preventDefault();
      if (!isEmpty && answers.edit(message.id, text, files)) onEnd();
    }}>
      <Files files={files} onRemove={(index) => { setFiles(files.filter((_, other) => other !== index)); }} />
      <textarea ref={area} dir="auto" aria-label={strings.editText} value={text} rows={4}
        onInput={(event) => { setText(event.currentTarget.value); }}
        onKeyDown={(event) => {
          if (!isEscape(event)) return;
          event.stopPropagation();
          onEnd();
        }} />
      <span class="ways">
        <button type="button" class="quiet" onClick={onEnd}>{strings.cancel}</button>
        <button type="submit" class="quiet" disabled={isEmpty || session.link.value !== "open"}>{strings.sendEdited}</button>
      </span>
    </form>
  );
}
