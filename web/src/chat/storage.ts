// Conversations in IndexedDB: what describes one in one record, and each message in its own, so that an answer that grows
// writes itself alone.

import { openDB } from "idb";
import type { DBSchema, IDBPDatabase } from "idb";
import { filesOf } from "./files";
import { settingsOf } from "./settings";
import type { Conversation, Message } from "./tree";

type Head = Omit<Conversation, "messages">;
type Row = Message & { conversation: string; order: number };

interface Schema extends DBSchema {
  conversations: { key: string; value: Head };
  messages: { key: string; value: Row; indexes: { conversation: string } };
}

export class Storage {
  private constructor(private readonly db: IDBPDatabase<Schema>) {}

  static async open(name = "unicorn-chat"): Promise<Storage> {
    const db = await openDB<Schema>(name, 1, {
      upgrade(made) {
        made.createObjectStore("conversations", { keyPath: "id" });
        made.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
      },
    });
    return new Storage(db);
  }

  async all(): Promise<Conversation[]> {
    const transaction = this.db.transaction(["conversations", "messages"]);
    const heads = await transaction.objectStore("conversations").getAll();
    const rows = await transaction.objectStore("messages").getAll();
    return heads.map((head) => joined(head, rows.filter(({ conversation }) => conversation === head.id)));
  }

  async get(id: string): Promise<Conversation | null> {
    const transaction = this.db.transaction(["conversations", "messages"]);
    const head = await transaction.objectStore("conversations").get(id);
    const rows = await transaction.objectStore("messages").index("conversation").getAll(id);
    return head ? joined(head, rows) : null;
  }

  // Writes what differs from `old`, in one transaction.
  async put(chat: Conversation, old: Conversation | undefined): Promise<void> {
    const transaction = this.db.transaction(["conversations", "messages"], "readwrite");
    const { messages, ...head } = chat;
    const writes: Promise<unknown>[] = [transaction.objectStore("conversations").put(head)];
    const store = transaction.objectStore("messages");
    let order = 0;
    for (const message of messages.values()) {
      if (old?.messages.get(message.id) !== message) {
        writes.push(store.put({ ...message, conversation: chat.id, order }));
      }
      order += 1;
    }
    for (const id of old?.messages.keys() ?? []) {
      if (!messages.has(id)) writes.push(store.delete(id));
    }
    await Promise.all([...writes, transaction.done]);
  }

  async remove(chat: Conversation): Promise<void> {
    const transaction = this.db.transaction(["conversations", "messages"], "readwrite");
    const store = transaction.objectStore("messages");
    const removals = [...chat.messages.keys()].map((id) => store.delete(id));
    await Promise.all([...removals, transaction.objectStore("conversations").delete(chat.id), transaction.done]);
  }
}

function joined(head: Head, rows: Row[]): Conversation {
  rows.sort((one, other) => one.created - other.created || one.order - other.order);
  // A conversation of an older page has no settings and files.
  const more = { settings: settingsOf(head.settings), draftFiles: filesOf(head.draftFiles) };
  return { ...head, ...more, messages: new Map(rows.map((row) => [row.id, messageOf(row)])) };
}

function messageOf(row: Row): Message {
  const message: Partial<Row> = { ...row };
  delete message.conversation;
  delete message.order;
  return message as Message;
}
