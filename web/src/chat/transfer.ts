// Conversations as a file, and back. A file may come from anywhere: what is not as it should be is refused by name.

import { callsOf } from "./calls";
import { newId } from "./id";
import { filesOf } from "./files";
import { settingsOf } from "./settings";
import { isState, statisticsOf } from "./records";
import { isUnderWay, reduce } from "./tree";
import type { Conversation, Message } from "./tree";

const FORMAT = "unicorn-chat";
const VERSION = 1;
const MAX_MESSAGES = 100_000;

// Why a file is not read, with what was found there.
export type ImportReason = "json" | "format" | "version" | "type" | "many" | "role" | "state" | "twice" | "parent" | "turns";

export class ImportError extends Error {
  constructor(
    readonly reason: ImportReason,
    readonly value = "",
  ) {
    super(`${reason} ${value}`);
  }
}

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
    throw new ImportError("json");
  }
  if (!isObject(file) || file["format"] !== FORMAT) throw new ImportError("format", FORMAT);
  if (file["version"] !== VERSION) throw new ImportError("version", String(file["version"]));
  return list(file["conversations"], "conversations").map(conversation);
}

function conversation(value: unknown): Conversation {
  if (!isObject(value)) throw new ImportError("type", "conversations");
  const rows = list(value["messages"], "messages");
  if (rows.length > MAX_MESSAGES) throw new ImportError("many", String(MAX_MESSAGES));
  const names = new Map<string, string>();
  const messages = new Map<string, Message>();
  for (const row of inOrder(rows)) {
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

// Each message after the one above it, where that is there: an older page's file has those of one time in any order.
function inOrder(rows: readonly unknown[]): Record<string, unknown>[] {
  const found = rows.map((row) => {
    if (!isObject(row)) throw new ImportError("type", "messages");
    return row;
  });
  const left = new Map(found.map((row) => [row["id"], row]));
  const ordered = new Set<Record<string, unknown>>();
  for (const row of found) {
    const chain: Record<string, unknown>[] = [];
    for (let next: Record<string, unknown> | undefined = row; next && left.get(next["id"]) === next; next = left.get(next["parent"])) {
      chain.push(next);
      left.delete(next["id"]);
    }
    for (const next of [...chain.reverse(), row]) ordered.add(next);
  }
  return [...ordered];
}

// A message comes after the one above it, so what is above is there already, and no circle can be.
function message(value: Record<string, unknown>, names: Map<string, string>, above: ReadonlyMap<string, Message>): Message {
  const { role, state } = value;
  if (role !== "user" && role !== "assistant") throw new ImportError("role", String(role));
  if (!isState(state)) throw new ImportError("state", String(state));
  const old = string(value["id"], "id");
  if (names.has(old)) throw new ImportError("twice", old);
  const parent = value["parent"] === null ? null : names.get(string(value["parent"], "parent"));
  if (parent === undefined) throw new ImportError("parent", old);
  if (role === "assistant" && above.get(parent ?? "")?.role !== "user") throw new ImportError("turns", old);
  const id = newId();
  names.set(old, id);
  const files = role === "user" ? filesOf(value["files"]) : [];
  const calls = role === "assistant" ? callsOf(value["calls"]) : [];
  const statistics = statisticsOf(value["statistics"]);
  return {
    id,
    parent,
    role,
    text: string(value["text"], "text"),
    state: role === "user" ? "done" : state,
    created: number(value["created"], "created"),
    ...(files.length > 0 && { files }),
    ...(calls.length > 0 && { calls }),
    ...(value["isJson"] === true && { isJson: true }),
    ...(typeof value["error"] === "string" && { error: value["error"] }),
    ...(typeof value["model"] === "string" && { model: value["model"] }),
    ...(statistics && { statistics }),
  };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function list(value: unknown, name: string): unknown[] {
  if (!Array.isArray(value)) throw new ImportError("type", name);
  return value;
}

function string(value: unknown, name: string): string {
  if (typeof value !== "string") throw new ImportError("type", name);
  return value;
}

function number(value: unknown, name: string): number {
  if (typeof value !== "number" || !Number.isFinite(value)) throw new ImportError("type", name);
  return value;
}
