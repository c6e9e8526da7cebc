import "fake-indexeddb/auto";
import { expect, test } from "vitest";
import { Chats } from "./chats";
import { Storage } from "./storage";
import { sentFor } from "./tree";

let made = 0;

async function reopened(name: string, growing: string[] = []): Promise<Chats> {
  const chats = new Chats(await Storage.open(name));
  await chats.load(new Set(growing));
  return chats;
}

async function withAnswer(name: string): Promise<Chats> {
  const chats = await reopened(name);
  chats.open(null);
  const id = chats.currentId.value;
  chats.dispatch(id, { type: "ask", question: "q", answer: "a", text: "Hi", files: [], at: 1 });
  chats.dispatch(id, { type: "delta", answer: "a", text: "Hel", received: 2 });
  await chats.flush();
  return chats;
}

function fresh(): string {
  made += 1;
  return `chats-${made}`;
}

test("a conversation survives with its draft, and the answer that grew is lost", async () => {
  const name = fresh();
  const before = await withAnswer(name);
  before.dispatch(before.currentId.value, { type: "draft", text: "And" });
  before.dispatch(before.currentId.value, { type: "delta", answer: "a", text: "lo", received: 2 });
  await before.flush();
  const after = await reopened(name);
  after.open(before.currentId.value);
  expect(after.current.value.draft).toBe("And");
  expect(after.path.value.map(({ text, state }) => [text, state])).toEqual([["Hi", "done"], ["Hello", "lost"]]);
  expect(sentFor(after.current.value, "a")).toEqual([{ role: "user", content: "Hi" }]);
});

test("an answer that is under way at the server waits to be taken up", async () => {
  const name = fresh();
  const before = await reopened(name);
  before.open(null);
  const id = before.currentId.value;
  before.dispatch(id, { type: "ask", question: "q", answer: "a", text: "Hi", files: [], at: 1 });
  before.dispatch(id, { type: "created", answer: "a", model: "m", response: "resp_1", received: 0 });
  before.dispatch(id, { type: "delta", answer: "a", text: "Hel", received: 4 });
  await before.flush();
  const after = await reopened(name);
  after.open(id);
  expect(after.path.value.at(-1)).toMatchObject({ state: "streaming", response: "resp_1", received: 4 });
  expect((await after.kept(id))?.messages.get("a")?.text).toBe("Hel");
});

test("an answer that grows in another tab goes on there", async () => {
  const name = fresh();
  const first = await withAnswer(name);
  const second = await reopened(name, ["a"]);
  second.open(first.currentId.value);
  first.dispatch(first.currentId.value, { type: "delta", answer: "a", text: "lo", received: 2 });
  first.dispatch(first.currentId.value, { type: "done", answer: "a", isTruncated: false });
  await first.flush();
  await second.reread(first.currentId.value);
  expect(second.path.value.at(-1)).toMatchObject({ text: "Hello", state: "done" });
});

test("what is removed is gone until it is added again", async () => {
  const name = fresh();
  const chats = await withAnswer(name);
  const removed = chats.remove(chats.currentId.value);
  await chats.flush();
  expect((await reopened(name)).listed.value).toEqual([]);
  if (removed) chats.restore(removed);
  await chats.flush();
  expect((await reopened(name)).listed.value.length).toBe(1);
});

test("deleted messages are deleted in the storage, too", async () => {
  const name = fresh();
  const chats = await withAnswer(name);
  chats.dispatch(chats.currentId.value, { type: "delete", message: "q" });
  chats.dispatch(chats.currentId.value, { type: "draft", text: "kept" });
  await chats.flush();
  const [left] = (await reopened(name)).listed.value;
  expect(left?.messages.size).toBe(0);
});

test("a new conversation is listed and written as soon as there is something in it", async () => {
  const name = fresh();
  const chats = await reopened(name);
  chats.open(null);
  await chats.flush();
  expect((await reopened(name)).all.value.size).toBe(0);
});
