// The chat page: reads what this browser keeps, shows it, and connects to the server, which keeps nothing of it.

import { effect, signal } from "@preact/signals";
import { render } from "preact";
import { Chats } from "./chat/chats";
import { Storage } from "./chat/storage";
import { growing } from "./server/locks";
import { Session } from "./server/session";
import { language } from "./strings";
import { App } from "./ui/app";
import { Notice, PageProvider } from "./ui/context";

const CURRENT = "unicorn-chat"; // which conversation this tab shows
const DRAFT = "unicorn-draft"; // what was written there when the page went: a database writes too late then

async function main(root: HTMLElement): Promise<void> {
  document.documentElement.lang = language;
  const tabs = new BroadcastChannel("unicorn-chats");
  const { storage, error } = await openStorage();
  const chats = new Chats(storage, (id) => {
    tabs.postMessage(id);
  });
  chats.storageError.value = error;
  await chats.load(await growing());
  chats.open(sessionStorage.getItem(CURRENT));
  const draft = sessionStorage.getItem(DRAFT);
  if (draft) chats.dispatch(chats.currentId.value, { type: "draft", text: draft });
  effect(() => {
    sessionStorage.setItem(CURRENT, chats.currentId.value);
  });
  const session = new Session(chats);
  tabs.addEventListener("message", ({ data }: MessageEvent<string>) => {
    const grows = [...(chats.all.value.get(data)?.messages.keys() ?? [])].some((id) => session.answers.isGrowing(id));
    if (!grows) void chats.reread(data).then(() => { session.answers.adopt(data); });
  });
  const { answers, inside, eight } = session;
  addEventListener("pagehide", () => {
    answers.leave();
    keepDraft(chats.current.value.draft);
    void chats.flush();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) void chats.flush();
  });
  const page = { chats, session, answers, inside, eight, notice: new Notice(), edited: signal(null) };
  render(<PageProvider value={page}><App icon={root.dataset["icon"] ?? ""} /></PageProvider>, root);
  session.start();
}

function keepDraft(text: string): void {
  try {
    sessionStorage.setItem(DRAFT, text);
  } catch {
    sessionStorage.removeItem(DRAFT); // too long: what the database has is older, and better than nothing
  }
}

async function openStorage(): Promise<{ storage: Storage | null; error: string }> {
  try {
    return { storage: await Storage.open(), error: "" };
  } catch (error) {
    return { storage: null, error: error instanceof Error ? error.message : String(error) };
  }
}

const root = document.getElementById("page");
if (root) void main(root);
