import "fake-indexeddb/auto";
import { deleteDB, openDB } from "idb";
import { afterEach, expect, test, vi } from "vitest";
import { problemOf, Storage } from "./storage";
import { emptyConversation, reduce } from "./tree";
import type { Conversation } from "./tree";

let made = 0;

function fresh(): string {
  made += 1;
  return `storage-${made}`;
}

function conversation(id = "c"): Conversation {
  const asked = reduce(emptyConversation(id, 1), { type: "ask", question: `${id}-q`, answer: `${id}-a`, text: "Hi", files: [], at: 1 });
  return reduce(asked, { type: "done", answer: `${id}-a`, isTruncated: false });
}

async function names(storage: Storage): Promise<string[]> {
  return (await storage.all()).chats.map(({ id }) => id);
}

async function rows(name: string): Promise<string[]> {
  const raw = await openDB(name);
  const found = (await raw.getAllKeys("messages")).map(String);
  raw.close();
  return found;
}

afterEach(() => { vi.restoreAllMocks(); });

test.each([
  ["without stores", () => undefined],
  ["with one of two", (db: IDBDatabase) => { db.createObjectStore("conversations", { keyPath: "id" }); }],
  ["without an index", (db: IDBDatabase) => {
    db.createObjectStore("conversations", { keyPath: "id" });
    db.createObjectStore("messages", { keyPath: "id" });
  }],
])("a database %s gets what is missing", async (_, upgrade) => {
  const name = fresh();
  (await openDB(name, 3, { upgrade: (db) => { upgrade(db as unknown as IDBDatabase); } })).close();
  const storage = await Storage.open(name);
  await storage.put(conversation(), undefined);
  expect(await names(await Storage.open(name))).toEqual(["c"]);
});

test("a page that wants to change the database is let, and this one writes again afterwards", async () => {
  const name = fresh();
  const storage = await Storage.open(name);
  await storage.put(conversation("one"), undefined);
  (await openDB(name, 2)).close();
  await storage.put(conversation("two"), undefined);
  expect(await names(storage)).toEqual(["one", "two"]);
  await deleteDB(name);
  expect(await names(storage)).toEqual([]);
});

test("a record that is damaged leaves the rest, and what is written beside it", async () => {
  const name = fresh();
  const storage = await Storage.open(name);
  for (const id of ["one", "two"]) await storage.put(conversation(id), undefined);
  const raw = await openDB(name);
  await raw.put("messages", { id: "one-a", conversation: "one", text: null });
  await raw.put("conversations", { id: 7 });
  await raw.delete("messages", "two-q");
  raw.close();
  const { chats, numDamaged } = await storage.all();
  expect(chats.map(({ id }) => id)).toEqual(["one", "two"]);
  expect(numDamaged).toBe(4);
  const [one, two] = chats;
  if (!one || !two) throw new Error("conversations are missing");
  expect([...two.messages.values()].map(({ role }) => role)).toEqual(["user", "assistant"]);
  const longer = reduce(two, { type: "ask", question: "r", answer: "b", text: "And?", files: [], at: 2 });
  expect(await storage.put(longer, two)).toBe(true);
  expect((await storage.get("two"))?.messages.size).toBe(4);
});

test("records that can't be read at once are read one by one", async () => {
  const name = fresh();
  const storage = await Storage.open(name);
  for (const id of ["one", "two"]) await storage.put(conversation(id), undefined);
  vi.spyOn(IDBObjectStore.prototype, "getAll").mockImplementation(() => { throw new Error("damaged"); });
  const get = Object.getOwnPropertyDescriptor(IDBObjectStore.prototype, "get")?.value as IDBObjectStore["get"];
  vi.spyOn(IDBObjectStore.prototype, "get").mockImplementation(function (this: IDBObjectStore, key) {
    if (key === "one") throw new Error("damaged");
    return get.call(this, key);
  });
  const { chats, numDamaged } = await storage.all();
  expect([chats.map(({ id }) => id), numDamaged]).toEqual([["two"], 1]);
});

test("what another tab deleted is not written again, and leaves nothing behind", async () => {
  const name = fresh();
  const [one, other] = [await Storage.open(name), await Storage.open(name)];
  const chat = conversation();
  await one.put(chat, undefined);
  const grown = reduce(chat, { type: "ask", question: "r", answer: "b", text: "And?", files: [], at: 2 });
  await other.remove("c");
  expect(await one.put(grown, chat)).toBe(false);
  expect([await names(one), await rows(name)]).toEqual([[], []]);
  await one.put(grown, undefined);
  await other.remove("c");
  expect(await rows(name)).toEqual([]);
});

test("an answer whose question another tab deleted is not written again, nor what was asked below it", async () => {
  const name = fresh();
  const [one, other] = [await Storage.open(name), await Storage.open(name)];
  const chat = reduce(conversation(), { type: "ask", question: "r", answer: "b", text: "And?", files: [], at: 2 });
  await one.put(chat, undefined);
  await other.put(reduce(chat, { type: "delete", message: "r" }), chat);
  const grown = reduce(chat, { type: "delta", answer: "b", text: "More", received: 1 });
  const asked = reduce(grown, { type: "ask", question: "s", answer: "d", text: "More?", files: [], at: 3 });
  expect(await one.put(asked, chat)).toBe(false);
  expect(await rows(name)).toEqual(["c-a", "c-q"]);
});

test("a deletion takes with it what another tab has written below meanwhile", async () => {
  const name = fresh();
  const [one, other] = [await Storage.open(name), await Storage.open(name)];
  const chat = conversation();
  await one.put(chat, undefined);
  await other.put(reduce(chat, { type: "ask", question: "r", answer: "b", text: "And?", files: [], at: 2 }), chat);
  await one.put(reduce(chat, { type: "delete", message: "c-a" }), chat);
  expect(await rows(name)).toEqual(["c-q"]);
});

test("after a deletion messages are kept in the order in which they are", async () => {
  const storage = await Storage.open(fresh());
  const event = (id: string) => ({ type: "retry", message: "c-a", answer: id, at: 1 }) as const;
  const three = [event("b"), event("d"), event("e")].reduce(reduce, conversation());
  await storage.put(three, undefined);
  const two = reduce(three, { type: "delete", message: "b" });
  await storage.put(two, three);
  const back = reduce(two, { type: "restore", removed: { messages: [...three.messages.values()], order: [...three.messages.keys()], leaf: null, left: null } });
  await storage.put(back, two);
  expect([...(await storage.get("c"))?.messages.keys() ?? []]).toEqual(["c-q", "c-a", "b", "d", "e"]);
});

test("a full storage is told apart from other failures", () => {
  expect(problemOf(new DOMException("x", "QuotaExceededError"))).toEqual({ kind: "full", text: "x" });
  expect(problemOf(new Error("y"))).toEqual({ kind: "failed", text: "y" });
});
