import "fake-indexeddb/auto";
import { expect, test, vi } from "vitest";
import { Chats } from "./chats";
import { Storage } from "./storage";
import { emptyConversation, reduce, sentFor } from "./tree";

let made = 0;

async function reopened(name: string, growing: string[] = []): Promise<Chats> {
  const chats = new Chats();
  await chats.load(await Storage.open(name), new Set(growing));
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
  expect(after.path.value.at(-1)?.text).toBe("Hel");
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

test("one conversation that can't be written stops no other, and once it can nothing is said of it", async () => {
  const name = fresh();
  const storage = await Storage.open(name);
  const chats = new Chats();
  await chats.load(storage, new Set());
  for (const id of ["large", "small"]) chats.add([{ ...emptyConversation(id, 1), title: id, draft: id }]);
  const put = vi.spyOn(storage, "put").mockImplementation((chat, old) =>
    chat.id === "large" ? Promise.reject(new DOMException("full", "QuotaExceededError")) : Storage.prototype.put.call(storage, chat, old),
  );
  await chats.flush();
  expect(chats.problem.value?.kind).toBe("full");
  expect((await reopened(name)).listed.value.map(({ id }) => id)).toEqual(["small"]);
  put.mockRestore();
  await chats.flush();
  expect(chats.problem.value).toBeNull();
  expect((await reopened(name)).listed.value.length).toBe(2);
});

test("what could not be written is tried again though nothing changes", async () => {
  const storage = await Storage.open(fresh());
  const chats = new Chats();
  await chats.load(storage, new Set());
  await chats.flush();
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  const put = vi.spyOn(storage, "put").mockRejectedValue(new Error("busy"));
  chats.add([{ ...emptyConversation("c", 1), draft: "d" }]);
  await chats.flush();
  put.mockResolvedValue(true);
  await vi.advanceTimersByTimeAsync(11_000);
  vi.useRealTimers();
  await chats.flush();
  expect([put.mock.calls.length, chats.problem.value]).toEqual([2, null]);
});

test("a database that takes long to write is said to, until it has", async () => {
  const storage = await Storage.open(fresh());
  const chats = new Chats();
  await chats.load(storage, new Set());
  await chats.flush();
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  let written: (isWhole: boolean) => void = () => undefined;
  vi.spyOn(storage, "put").mockReturnValue(new Promise((resolve) => { written = resolve; }));
  chats.add([{ ...emptyConversation("c", 1), draft: "d" }]);
  const writing = chats.flush();
  await vi.advanceTimersByTimeAsync(6000);
  expect(chats.problem.value?.kind).toBe("slow");
  written(true);
  await writing;
  vi.useRealTimers();
  expect(chats.problem.value).toBeNull();
});

test("a database that answers late gives what it has, and gets what there is by then", async () => {
  const name = fresh();
  const before = await withAnswer(name);
  const late = new Chats();
  late.open(null);
  late.dispatch(late.currentId.value, { type: "draft", text: "meanwhile" });
  await late.flush();
  await late.load(await Storage.open(name), new Set());
  await late.flush();
  expect(late.current.value.draft).toBe("meanwhile");
  expect(new Set((await reopened(name)).listed.value.map(({ id }) => id))).toEqual(new Set([before.currentId.value, late.currentId.value]));
});

test("what another tab writes while this one has not written yet is joined with it", async () => {
  const name = fresh();
  const first = await withAnswer(name);
  const id = first.currentId.value;
  const second = await reopened(name, ["a"]);
  first.dispatch(id, { type: "done", answer: "a", isTruncated: false });
  await first.flush();
  second.dispatch(id, { type: "ask", question: "r", answer: "b", text: "And?", files: [], at: 2 });
  await second.reread(id);
  expect([...(second.all.value.get(id)?.messages.values() ?? [])].map((message) => [message.id, message.state])).toEqual([
    ["q", "done"], ["a", "done"], ["r", "done"], ["b", "waiting"],
  ]);
});

test("a conversation that another tab deleted is gone, and what was being written in it is there in a new one", async () => {
  const name = fresh();
  const first = await withAnswer(name);
  const id = first.currentId.value;
  const second = await reopened(name, ["a"]);
  second.open(id);
  second.dispatch(id, { type: "draft", text: "unsent" });
  second.dispatch(id, { type: "delta", answer: "a", text: "lo", received: 3 });
  first.remove(id);
  await first.flush();
  await second.flush();
  expect([second.all.value.has(id), second.current.value.draft]).toEqual([false, "unsent"]);
  await second.flush();
  expect((await reopened(name)).all.value.has(id)).toBe(false);
});

test("what was deleted here is not brought back by what another tab wrote before it knew", async () => {
  const name = fresh();
  const first = await withAnswer(name);
  const id = first.currentId.value;
  const second = await reopened(name, ["a"]);
  second.dispatch(id, { type: "delta", answer: "a", text: "lo", received: 3 });
  await second.flush();
  first.remove(id);
  await first.reread(id);
  await first.flush();
  expect((await reopened(name)).all.value.has(id)).toBe(false);
});

test("a conversation is brought back into what is there of it by now", () => {
  const chats = new Chats();
  chats.add([reduce(emptyConversation("c", 1), { type: "ask", question: "q", answer: "a", text: "Hi", files: [], at: 1 })]);
  const removed = chats.remove("c");
  chats.add([reduce(emptyConversation("c", 1), { type: "ask", question: "r", answer: "b", text: "Else", files: [], at: 2 })]);
  if (removed) chats.restore(removed);
  expect([...(chats.all.value.get("c")?.messages.keys() ?? [])]).toEqual(["q", "a", "r", "b"]);
});
