import { useEffect, useRef, useState } from "preact/hooks";
import { isUnderWay } from "../chat/tree";
import { strings } from "../strings";
import { ChatsDialog } from "./chats_dialog";
import { Composer } from "./composer";
import { usePage } from "./context";
import { useKeptFocus } from "./focus";
import { Header } from "./header";
import { InsideDrawer } from "./inside_drawer";
import { KeyDialog } from "./key_dialog";
import { isEscape } from "./keys";
import { Log } from "./log";
import { ModelsDialog } from "./models_dialog";
import { NoticeView } from "./notice_view";
import { SettingsDialog } from "./settings_dialog";

export function App({ icon }: { icon: string }) {
  const { chats, session, answers, inside, notice } = usePage();
  const [dialog, setDialog] = useState<"chats" | "models" | "settings" | null>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const prompt = useRef<HTMLTextAreaElement>(null);
  const conversation = useRef<HTMLElement>(null);
  const name = session.model.value ? (session.model.value.model ?? strings.noModel) : null;
  useEffect(() => {
    document.title = name === null ? "unicorn_async" : `${name} · unicorn_async`;
  }, [name]);
  useEffect(() => { prompt.current?.focus(); }, []);
  useEscape();
  useKeptFocus(prompt, conversation);
  const close = (): void => { setDialog(null); };
  const newChat = (): void => {
    const before = chats.currentId.value;
    const hadMessages = chats.path.value.length > 0;
    chats.open(null);
    answers.speed.value = "";
    answers.problem.value = null;
    if (hadMessages) notice.show(strings.newChatBegun, () => { chats.open(before); });
    prompt.current?.focus();
  };
  const key = session.keyWanted.value;
  return (
    <>
    <div id="scroller" ref={scroller}>
      <Header icon={icon} onChats={() => { setDialog("chats"); }} onModels={() => { setDialog("models"); }} onNewChat={newChat} />
      <main tabIndex={-1} ref={conversation}>
        <Log scroller={scroller} />
      </main>
      <Composer prompt={prompt} onSettings={() => { setDialog("settings"); }} />
      {dialog === "chats" && <ChatsDialog onClose={close} />}
      {dialog === "models" && <ModelsDialog onClose={close} />}
      {dialog === "settings" && <SettingsDialog onClose={close} />}
      {key && <KeyDialog key={String(key.hadKey)} hadKey={key.hadKey} />}
      {!dialog && !key && <NoticeView />}
    </div>
    {inside.isOpen.value && <InsideDrawer />}
    </>
  );
}

// Stops the answer, or else closes the inside view.
function useEscape(): void {
  const { chats, answers, inside } = usePage();
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      if (!isEscape(event) || document.querySelector("dialog[open]")) return;
      const leaf = chats.path.value.at(-1);
      if (leaf && isUnderWay(leaf)) answers.stop(leaf.id);
      else if (inside.isOpen.value) inside.toggle();
    };
    document.addEventListener("keydown", pressed);
    return () => { document.removeEventListener("keydown", pressed); };
  }, []);
}
