// Conversations as a file, and back. A file may come from anywhere: what is not as it should be is refused by name.

import { callsOf } from "./calls";
import { newId } from "./id";
import { filesOf } from "./files";
import { settingsOf } from "./settings";
import { isUnderWay, reduce } from "./tree";
import type { Conversation, Message, MessageState } from "./tree";

const FORMAT = "unicorn-chat";
const VERSION = 1;
const STATES = new Set<MessageState>(["waiting", "streaming", "done", "truncated", "stopped", "failed", "lost"]);
const MAX_MESSAGES = 100_000;

export class ImportError extends Error {}

export function exported(chats: readonly Conversation[]): string {
  const conversations = chats.map((chat) => ({ ...chat, messages: [...chat.messages.values()] }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);
}

// Returns the file's conversations under new names, so that none takes another's place.
export function imported(text: string): Conversation[] {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    throw new ImportError("the file is not JSON");
  }
  if (!isObject(file) || file["format"] !== FORMAT) throw new ImportError(`the file's format is not ${FORMAT}`);
  if (file["version"] !== VERSION) throw new ImportError(`expected version ${VERSION}, got ${String(file["version"])}`);
  return list(file["conversations"], "conversations").map(conversation);
}

function conversation(value: unknown): Conversation {
  if (!isObject(value)) throw new ImportError("a conversation is not an object");
  const rows = list(value["messages"], "messages");
  if (rows.length > MAX_MESSAGES) throw new ImportError(`a conversation has more than ${MAX_MESSAGES} messages`);
  const names = new Map<string, string>();
  const messages = new Map<string, Message>();
  for (const row of rows) {
    const made = message(row, names, messages);
    messages.set(made.id, made);
  }
  const leaf = names.get(String(value["leaf"])) ?? null;
  const start = names.get(String(value["start"])) ?? null;
  const title = string(value["title"], "title");
  const times = { created: number(value["created"], "created"), changed: number(value["changed"], "changed") };
  const settings = settingsOf(value["settings"]);
  const draft = string(value["draft"], "draft");
  const more = { draft, draftFiles: filesOf(value["draftFiles"]), settings };
  const chat: Conversation = { id: newId(), title, ...times, ...more, leaf, start, messages };
  const growing = [...messages.values()].filter(isUnderWay);
  return growing.reduce((left, { id }) => reduce(left, { type: "lost", answer: id }), chat);
}

// A message comes after the one above it, so what is above is there already, and no circle can be.
function message(value: unknown, names: Map<string, string>, above: ReadonlyMap<string, Message>): Message {
  if (!isObject(value)) throw new ImportError("a message is not an object");
  const { role, state } = value;
  if (role !== "user" && role !== "assistant") throw new ImportError(`expected user or assistant, got ${String(role)}`);
  if (!STATES.has(state as MessageState)) throw new ImportError(`a message's state is ${String(state)}`);
  const old = string(value["id"], "id");
  if (names.has(old)) throw new ImportError(`two messages are named ${old}`);
  const parent = value["parent"] === null ? null : names.get(string(value["parent"], "parent"));
  if (parent === undefined) throw new ImportError(`${old}: what it answers is not there`);
  if ((above.get(parent ?? "")?.role ?? "assistant") === role) throw new ImportError(`${old}: two turns of ${role}`);
  const id = newId();
  names.set(old, id);
  const files = role === "user" ? filesOf(value["files"]) : [];
  const calls = role === "assistant" ? callsOf(value["calls"]) : [];
  return {
    id,
    parent,
    role,
    text: string(value["text"], "text"),
    state: role === "user" ? "done" : (state as MessageState),
    created: number(value["created"], "created"),
    ...(files.length > 0 && { files }),
    ...(calls.length > 0 && { calls }),
    ...(value["isJson"] === true && { isJson: true }),
    ...(typeof value["error"] === "string" && { error: value["error"] }),
    ...(typeof value["model"] === "string" && { model: value["model"] }),
  };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function list(value: unknown, name: string): unknown[] {
  if (!Array.isArray(value)) throw new ImportError(`${name}: expected a list`);
  return value;
}

function string(value: unknown, name: string): string {
  if (typeof value !== "string") throw new ImportError(`${name}: expected a text`);
  return value;
}

function number(value: unknown, name: string): number {
  if (typeof value !== "number" || !Number.isFinite(value)) throw new ImportError(`${name}: expected a number`);
  return value;
}
