// The chat page: reads what this browser keeps, shows it, and connects to the server, which keeps nothing of it.

import { effect, signal } from "@preact/signals";
import { render } from "preact";
import { Chats } from "./chat/chats";
import { problemOf, Storage } from "./chat/storage";
import { keep, kept, otherTabs } from "./chat/tab";
import { growing } from "./server/locks";
import { Session } from "./server/session";
import { language, strings } from "./strings";
import { App } from "./ui/app";
import { Notice, PageProvider } from "./ui/context";

const CURRENT = "unicorn-chat"; // which conversation this tab shows
const DRAFT = "unicorn-draft"; // what was written there when the page went: a database writes too late then
const PATIENCE_MS = 1500; // with the database, before the page is shown without what it keeps

async function main(root: HTMLElement): Promise<void> {
  document.documentElement.lang = language;
  const tabs = otherTabs();
  const chats = new Chats(tabs.tell);
  const session = new Session(chats);
  const { answers, inside, eight } = session;
  const notice = new Notice();
  const shown = kept(CURRENT);
  const reading = read(chats);
  await Promise.race([reading, new Promise((resolve) => { setTimeout(resolve, PATIENCE_MS); })]);
  const isLate = chats.problem.value?.kind === "slow";
  chats.open(shown);
  takeDraft(chats);
  effect(() => {
    keep(CURRENT, chats.currentId.value);
  });
  tabs.listen((id) => {
    void chats.reread(id).then(() => { answers.adopt(id); });
  });
  addEventListener("pagehide", () => {
    answers.leave();
    keep(DRAFT, chats.current.value.draft);
    void chats.flush();
  });
  addEventListener("pageshow", () => { keep(DRAFT, null); });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) void chats.flush();
  });
  const page = { chats, session, answers, inside, eight, notice, edited: signal(null) };
  render(<PageProvider value={page}><App icon={root.dataset["icon"] ?? ""} /></PageProvider>, root);
  session.start();
  void reading.then(() => {
    if (chats.numDamaged.value) notice.show(strings.damaged(chats.numDamaged.value));
    if (!isLate) return;
    if (!chats.listed.value.includes(chats.current.value)) chats.open(shown);
    answers.adoptAll();
  });
}

// Reads what is kept, however long that takes.
async function read(chats: Chats): Promise<void> {
  chats.problem.value = { kind: "slow", text: "" };
  try {
    await chats.load(await Storage.open(), await growing());
  } catch (error) {
    chats.problem.value = problemOf(error);
  }
}

// Of the draft the tab knows what it was at last, also that it was empty; a tab made from this one has its own.
function takeDraft(chats: Chats): void {
  const draft = kept(DRAFT);
  keep(DRAFT, null);
  if (draft !== null) chats.dispatch(chats.currentId.value, { type: "draft", text: draft });
}

const root = document.getElementById("page");
if (root) void main(root);
