// Conversations in IndexedDB: what describes one in one record, and each message in its own, so that an answer that grows
// writes itself alone.

import { openDB } from "idb";
import type { DBSchema, IDBPDatabase, IDBPTransaction } from "idb";
import { joined } from "./records";
import type { Head, Row } from "./records";
import type { Conversation } from "./tree";

interface Schema extends DBSchema {
  conversations: { key: string; value: Head };
  messages: { key: string; value: Row; indexes: { conversation: string } };
}

type Database = IDBPDatabase<Schema>;
type Store = "conversations" | "messages";
const STORES: Store[] = ["conversations", "messages"];

export interface Kept {
  readonly chats: Conversation[];
  readonly numDamaged: number; // records that were left out or mended
}

export interface StorageProblem {
  readonly kind: "slow" | "full" | "failed"; // slow = the database has not answered yet
  readonly text: string;
}

export function problemOf(error: unknown): StorageProblem {
  const { name, message } = error instanceof Error ? error : { name: "", message: String(error) };
  return { kind: name === "QuotaExceededError" ? "full" : "failed", text: message };
}

export class Storage {
  private database: Promise<Database> | null = null;
  private readonly mended = new Set<string>(); // messages that the database has not, or not so

  private constructor(private readonly name: string) {}

  static async open(name = "unicorn-chat"): Promise<Storage> {
    const storage = new Storage(name);
    await storage.connected();
    return storage;
  }

  async all(): Promise<Kept> {
    const heads = await this.read("conversations");
    const rows = await this.read("messages");
    const byChat = grouped(rows.found, ({ conversation }) => conversation);
    let numDamaged = heads.numDamaged + rows.numDamaged;
    const chats = heads.found.flatMap((head) => {
      const chat = this.joined(head, byChat.get(head.id) ?? []);
      numDamaged += chat?.numDamaged ?? 1;
      return chat ? [chat.chat] : [];
    });
    return { chats, numDamaged };
  }

  async get(id: string): Promise<Conversation | null> {
    const transaction = (await this.connected()).transaction(STORES);
    const head = await transaction.objectStore("conversations").get(id);
    const rows = await transaction.objectStore("messages").index("conversation").getAll(id);
    return (head && this.joined(head, rows)?.chat) ?? null;
  }

  // Writes what differs from `old`, in one transaction; returns false where another tab has deleted something of that
  // meanwhile, which then stays deleted.
  async put(chat: Conversation, old: Conversation | undefined): Promise<boolean> {
    const transaction = (await this.connected()).transaction(STORES, "readwrite");
    const heads = transaction.objectStore("conversations");
    const store = transaction.objectStore("messages");
    if (old && (await heads.getKey(chat.id)) === undefined) return false;
    const there = new Set(old && (await store.index("conversation").getAllKeys(chat.id)));
    const { messages, ...head } = chat;
    const places = new Map([...(old?.messages.keys() ?? [])].map((id, place) => [id, place]));
    const gone = new Set([...places.keys()].filter((id) => !there.has(id) && !this.mended.has(id)));
    const deleted = [...places.keys()].filter((id) => !messages.has(id));
    const below = deleted.length ? withBelow(deleted, await store.index("conversation").getAll(chat.id)) : [];
    const written: string[] = [];
    const writes: Promise<unknown>[] = [heads.put(head)];
    let isWhole = true;
    let order = 0;
    for (const message of messages.values()) {
      const { id, parent } = message;
      const isNew = old?.messages.get(id) !== message || places.get(id) !== order || this.mended.has(id);
      if (parent !== null && gone.has(parent)) gone.add(id);
      if (isNew && gone.has(id)) isWhole = false;
      else if (isNew) {
        writes.push(store.put({ ...message, conversation: chat.id, order }));
        written.push(id);
      }
      order += 1;
    }
    for (const id of below) {
      if (!messages.has(id)) writes.push(store.delete(id));
    }
    await settled([...writes, transaction.done]);
    for (const id of written) this.mended.delete(id);
    return isWhole;
  }

  // Deletes a conversation, and what any tab has written of it.
  async remove(id: string): Promise<void> {
    const transaction = (await this.connected()).transaction(STORES, "readwrite");
    const store = transaction.objectStore("messages");
    const names = await store.index("conversation").getAllKeys(id);
    await settled([...names.map((name) => store.delete(name)), transaction.objectStore("conversations").delete(id), transaction.done]);
  }

  private joined(head: Head, rows: Row[]): ReturnType<typeof joined> {
    const found = joined(head, rows);
    for (const id of found?.mended ?? []) this.mended.add(id);
    return found;
  }

  // All records of a store; where the browser can't read them at once, those that it can read alone.
  private async read<Name extends Store>(store: Name): Promise<{ found: Schema[Name]["value"][]; numDamaged: number }> {
    const database = await this.connected();
    try {
      return { found: await database.getAll(store), numDamaged: 0 };
    } catch {
      const found: Schema[Name]["value"][] = [];
      const names = await database.getAllKeys(store);
      for (const name of names) {
        const record = await database.get(store, name).catch(() => undefined);
        if (record !== undefined) found.push(record);
      }
      return { found, numDamaged: names.length - found.length };
    }
  }

  // The connection, made anew where the browser has ended it or another tab's page wanted to change the database.
  private connected(): Promise<Database> {
    this.database ??= this.connect().catch((error: unknown) => {
      this.database = null;
      throw error;
    });
    return this.database;
  }

  private async connect(version?: number): Promise<Database> {
    const database = await openDB<Schema>(this.name, version, {
      upgrade(made, _old, _new, transaction) { makeStores(made, transaction); },
      blocking: (_current, _blocked, event) => {
        (event.target as IDBDatabase).close();
        this.database = null;
      },
      terminated: () => { this.database = null; },
    });
    if (isComplete(database)) return database;
    database.close();
    return this.connect(database.version + 1);
  }
}

function makeStores(database: Database, transaction: IDBPTransaction<Schema, Store[], "versionchange">): void {
  const names = database.objectStoreNames;
  if (!names.contains("conversations")) database.createObjectStore("conversations", { keyPath: "id" });
  const messages = names.contains("messages") ? transaction.objectStore("messages") : database.createObjectStore("messages", { keyPath: "id" });
  if (!messages.indexNames.contains("conversation")) messages.createIndex("conversation", "conversation");
}

function isComplete(database: Database): boolean {
  if (!STORES.every((name) => database.objectStoreNames.contains(name))) return false;
  return database.transaction("messages").store.indexNames.contains("conversation");
}

function grouped<Key>(rows: readonly Row[], keyOf: (row: Row) => Key): Map<Key, Row[]> {
  const groups = new Map<Key, Row[]>();
  for (const row of rows) {
    const found = groups.get(keyOf(row));
    if (found) found.push(row);
    else groups.set(keyOf(row), [row]);
  }
  return groups;
}

// The names of messages, and of all below them: another tab may have written some that this one has not seen.
function withBelow(names: readonly string[], rows: readonly Row[]): ReadonlySet<string> {
  const children = grouped(rows, ({ parent }) => parent);
  const found = new Set(names);
  for (const id of found) {
    for (const child of children.get(id) ?? []) found.add(child.id); // which this loop comes to, too
  }
  return found;
}

// Waits for all, so that no refusal is left over that nobody hears of; the transaction, which comes last, knows the reason.
async function settled(writes: Promise<unknown>[]): Promise<void> {
  const failed = (await Promise.allSettled(writes)).findLast((result) => result.status === "rejected");
  if (failed) throw failed.reason;
}
