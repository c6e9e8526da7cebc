// A conversation as a tree of messages: a question has answers, an answer has further questions. What is shown is one way
// from the root to a leaf; of that, what is sent are the turns that have an answer, and the question that is asked.

import type { Call } from "./calls";
import { withFiles } from "./files";
import type { Attached } from "./files";
import { partsOf } from "./reasoning";
import { NO_SETTINGS } from "./settings";
import type { Settings } from "./settings";

// An answer is waiting until its first text, then streaming; the other states are its ends. A question is always "done".
export type MessageState = "waiting" | "streaming" | "done" | "truncated" | "stopped" | "failed" | "lost";

export interface Message {
  readonly id: string;
  readonly parent: string | null;
  readonly role: "user" | "assistant";
  readonly text: string;
  readonly files?: readonly Attached[]; // of a question
  readonly calls?: readonly Call[]; // of an answer
  readonly isJson?: boolean; // an answer in a format that was asked for
  readonly state: MessageState;
  readonly created: number; // ms since 1970
  readonly error?: string;
  readonly code?: string; // of the error, as the server names it
  readonly model?: string;
  readonly statistics?: Statistics;
  readonly response?: string; // its name at the server, while it is under way, or until the server knows that it was stopped
  readonly received?: number; // number of the server's last event whose text is there
}

export interface Statistics {
  readonly tokens: number;
  readonly contextTokens: number; // with the conversation above
  readonly tokensPerSecond: number | null; // null where the page did not see all of it come
  readonly firstSeconds?: number; // from the question to the first text
  readonly thoughtSeconds?: number; // from that to the end of the reasoning
  readonly cachedTokens?: number; // of the context, that were not computed again
}

export interface Conversation {
  readonly id: string;
  readonly title: string; // empty = the first question
  readonly created: number;
  readonly changed: number; // ms since 1970, of the last question
  readonly draft: string;
  readonly draftFiles: readonly Attached[];
  readonly settings: Settings;
  readonly leaf: string | null;
  readonly start: string | null; // the first message that is sent, where older ones were left out
  readonly messages: ReadonlyMap<string, Message>; // in the order in which they were made
}

export interface Sent {
  role: "system" | "user" | "assistant";
  content: string;
}

export type ChatEvent =
  | ({ type: "ask"; question: string; text: string; files: readonly Attached[] } & Begun)
  | ({ type: "edit"; message: string; question: string; text: string; files: readonly Attached[] } & Begun)
  | ({ type: "retry"; message: string } & Begun)
  | { type: "created"; answer: string; model: string; response: string; received: number; isJson?: boolean }
  | { type: "delta"; answer: string; text: string; received: number; calls?: readonly Call[] }
  | { type: "done"; answer: string; isTruncated: boolean; statistics?: Statistics }
  | { type: "stopped"; answer: string; isTold: boolean } // at the server
  | { type: "told"; answer: string }
  | { type: "failed"; answer: string; error: string; code?: string }
  | { type: "lost"; answer: string }
  | { type: "delete"; message: string }
  | { type: "restore"; removed: Removed }
  | { type: "select"; message: string }
  | { type: "draft"; text: string }
  | { type: "draftFiles"; files: readonly Attached[] }
  | { type: "settings"; settings: Settings }
  | { type: "trim"; start: string | null }
  | { type: "rename"; title: string };

interface Begun {
  readonly answer: string;
  readonly response?: string; // its name at the server
  readonly at: number;
}

// What was deleted, and what brings it back to its place.
export interface Removed {
  readonly messages: readonly Message[];
  readonly order: readonly string[]; // of all messages before
  readonly leaf: string | null; // before
  readonly left: string | null; // the leaf after
}

export function emptyConversation(id: string, at: number): Conversation {
  return { id, title: "", created: at, changed: at, draft: "", draftFiles: [], settings: NO_SETTINGS, leaf: null, start: null, messages: new Map() };
}

// What becomes of a conversation by an event. An event about a message that is not there, or an answer that has ended,
// changes nothing: it came late.
export function reduce(chat: Conversation, event: ChatEvent): Conversation {
  switch (event.type) {
    case "ask":
      return asked(chat, chat.leaf, event, event.files);
    case "edit": {
      const old = chat.messages.get(event.message);
      return old?.role === "user" ? asked(chat, old.parent, event, event.files) : chat;
    }
    case "retry": {
      const old = chat.messages.get(event.message);
      const question = old?.role === "assistant" ? old.parent : old?.id;
      return question ? withAnswer(chat, question, event) : chat;
    }
    case "created":
      return changed(chat, event.answer, () => ({
        model: event.model,
        response: event.response,
        received: event.received,
        ...(event.isJson && { isJson: true }),
      }));
    case "delta":
      return changed(chat, event.answer, ({ text }) => ({
        text: text + event.text,
        state: "streaming",
        received: event.received,
        ...(event.calls && { calls: event.calls }),
      }));
    case "done": {
      const state = event.isTruncated ? "truncated" : "done";
      return ended(chat, event.answer, () => ({ state, ...(event.statistics && { statistics: event.statistics }) }));
    }
    case "stopped":
      return ended(chat, event.answer, () => ({ state: "stopped" }), event.isTold);
    case "told": {
      const answer = chat.messages.get(event.answer);
      return answer?.response === undefined || isUnderWay(answer) ? chat : withMessage(chat, withoutName(answer));
    }
    case "failed":
      return ended(chat, event.answer, () => ({
        state: "failed",
        error: event.error,
        ...(event.code && { code: event.code }),
      }));
    case "lost":
      return ended(chat, event.answer, () => ({ state: "lost" }));
    case "delete":
      return withoutSubtree(chat, event.message);
    case "restore":
      return restored(chat, event.removed);
    case "select":
      return chat.messages.has(event.message) ? { ...chat, leaf: latestBelow(chat, event.message) } : chat;
    case "draft":
      return { ...chat, draft: event.text };
    case "draftFiles":
      return { ...chat, draftFiles: event.files };
    case "settings":
      return { ...chat, settings: event.settings };
    case "trim":
      return { ...chat, start: event.start };
    case "rename":
      return { ...chat, title: event.title.trim() };
  }
}

export function isUnderWay(message: Message): boolean {
  return message.role === "assistant" && (message.state === "waiting" || message.state === "streaming");
}

// What a message says: without the reasoning before an answer, which models do not want to see again, with a question's files.
export function saidIn({ role, text, files }: Message): string {
  return role === "assistant" ? partsOf(text).answer : withFiles(text, files ?? []);
}

// The messages from the root to a message; the way that is shown is that to the leaf.
export function pathTo(chat: Conversation, id: string | null): Message[] {
  const path: Message[] = [];
  for (let message = at(chat, id); message; message = at(chat, message.parent)) path.push(message);
  return path.reverse();
}

// A question is unanswered if what stands below it on the way has no text, or is another question, where its answer was
// deleted: such a turn is shown, and never sent, since templates want turns to alternate.
export function unanswered(path: readonly Message[]): Set<string> {
  const found = new Set<string>();
  path.forEach((message, index) => {
    if (message.role !== "user") return;
    const answer = path[index + 1];
    if (answer?.role !== "assistant" || (!saidIn(answer) && !isUnderWay(answer))) found.add(message.id);
  });
  return found;
}

// What the model is told for an answer: the system prompt, every answered turn above that was not left out, the question.
export function sentFor(chat: Conversation, answer: string): Sent[] {
  const whole = pathTo(chat, answer).slice(0, -1);
  const path = whole.slice(Math.max(0, startIndex(chat, whole)));
  const skipped = unanswered(path.slice(0, -1));
  const turns = path
    .map((message) => ({ id: message.id, role: message.role, content: saidIn(message) }))
    .filter(({ id, role, content }) => (role === "user" ? !skipped.has(id) : content))
    .map(({ role, content }) => ({ role, content }));
  const { system } = chat.settings;
  return system ? [{ role: "system", content: system }, ...turns] : turns;
}

// Where on a way what is sent begins: -1 if nothing of it was left out.
export function startIndex(chat: Conversation, path: readonly Message[]): number {
  return path.findIndex(({ id }) => id === chat.start);
}

// The question from which on at most two thirds of what an answer was told are left, and so many turns; null if one turn is
// all there is.
export function trimmedStart(chat: Conversation, answer: string, maxTurns = Infinity): string | null {
  const whole = pathTo(chat, answer).slice(0, -1);
  const path = whole.slice(Math.max(0, startIndex(chat, whole)));
  const size = path.reduce((sum, message) => sum + saidIn(message).length, 0);
  let left = size;
  for (const [index, message] of path.entries()) {
    const isEnough = (left <= (size * 2) / 3 && path.length - index <= maxTurns) || index === path.length - 1;
    if (message.role === "user" && index > 0 && isEnough) return message.id;
    left -= saidIn(message).length;
  }
  return null;
}

// The names of the messages below each, in the order in which they were made; those below null begin the conversation.
export function childNames(chat: Conversation): Map<string | null, string[]> {
  const names = new Map<string | null, string[]>();
  for (const { id, parent } of chat.messages.values()) {
    const found = names.get(parent);
    if (found) found.push(id);
    else names.set(parent, [id]);
  }
  return names;
}

export function titleOf(chat: Conversation): string {
  if (chat.title) return chat.title;
  const first = [...chat.messages.values()].find(({ role }) => role === "user");
  return first ? first.text.trim().replace(/\s+/g, " ").slice(0, 80) : "";
}

function at(chat: Conversation, id: string | null): Message | undefined {
  return id === null ? undefined : chat.messages.get(id);
}

function childrenOf(chat: Conversation, parent: string | null): Message[] {
  return [...chat.messages.values()].filter((message) => message.parent === parent);
}

function asked(
  chat: Conversation,
  parent: string | null,
  event: Begun & { question: string; text: string },
  files: readonly Attached[],
): Conversation {
  const { question: id, text, at: created } = event;
  const question: Message = { id, parent, role: "user", text, state: "done", created, ...(files.length > 0 && { files }) };
  const messages = new Map(chat.messages).set(id, question);
  return withAnswer({ ...chat, messages }, id, event);
}

function withAnswer(chat: Conversation, parent: string, { answer: id, response, at: created }: Begun): Conversation {
  const answer: Message = { id, parent, role: "assistant", text: "", state: "waiting", created, ...(response && { response }) };
  return { ...withMessage(chat, answer), leaf: id, changed: created };
}

function withMessage(chat: Conversation, message: Message): Conversation {
  return { ...chat, messages: new Map(chat.messages).set(message.id, message) };
}

function changed(chat: Conversation, id: string, change: (answer: Message) => Partial<Message>): Conversation {
  const answer = chat.messages.get(id);
  if (!answer || !isUnderWay(answer)) return chat;
  return withMessage(chat, { ...answer, ...change(answer) });
}

// As `changed`, of an answer whose end it is: where it came from counts no longer once the server knows of it.
function ended(chat: Conversation, id: string, change: (answer: Message) => Partial<Message>, isTold = true): Conversation {
  const next = changed(chat, id, change);
  const answer = next.messages.get(id);
  return next === chat || !answer || !isTold ? next : withMessage(next, withoutName(answer));
}

function withoutName(answer: Message): Message {
  const left: { -readonly [Key in keyof Message]: Message[Key] } = { ...answer };
  delete left.response;
  delete left.received;
  return left;
}

// A message and all below it, in the order in which they were made.
export function subtree(chat: Conversation, id: string): Message[] {
  const found = new Set([id]);
  // A message is made after its parent, so one pass finds all below.
  for (const message of chat.messages.values()) {
    if (message.parent !== null && found.has(message.parent)) found.add(message.id);
  }
  return [...chat.messages.values()].filter((message) => found.has(message.id));
}

// What a deletion takes away.
export function removal(chat: Conversation, id: string): Removed {
  const messages = subtree(chat, id);
  return { messages, order: [...chat.messages.keys()], leaf: chat.leaf, left: withoutSubtree(chat, id).leaf };
}

// Puts back what was deleted, beside all that was made since; who has gone on elsewhere stays there.
function restored(chat: Conversation, { messages, order, leaf, left }: Removed): Conversation {
  const back = new Map(messages.map((message) => [message.id, message]));
  const there = (id: string): Message | undefined => chat.messages.get(id) ?? back.get(id);
  const known = order.flatMap((id) => there(id) ?? []);
  const all = new Map([...known, ...chat.messages.values()].map((message) => [message.id, message]));
  const whole = withoutStrays(all);
  const isBack = chat.leaf === left && leaf !== null && whole.has(leaf);
  return { ...chat, messages: whole, leaf: isBack ? leaf : chat.leaf };
}

// Of messages whose parent is gone by now nothing could be shown.
function withoutStrays(messages: ReadonlyMap<string, Message>): Map<string, Message> {
  const left = new Map<string, Message>();
  for (const message of messages.values()) {
    if (message.parent === null || left.has(message.parent)) left.set(message.id, message);
  }
  return left;
}

function withoutSubtree(chat: Conversation, id: string): Conversation {
  const top = chat.messages.get(id);
  if (!top) return chat;
  const gone = new Set(subtree(chat, id).map((message) => message.id));
  const messages = new Map([...chat.messages].filter(([key]) => !gone.has(key)));
  const left: Conversation = { ...chat, messages };
  if (chat.leaf === null || !gone.has(chat.leaf)) return left;
  const beside = childrenOf(left, top.parent).at(-1);
  return { ...left, leaf: beside ? latestBelow(left, beside.id) : top.parent };
}

function latestBelow(chat: Conversation, id: string): string {
  let found = id;
  for (let child = childrenOf(chat, id).at(-1); child; child = childrenOf(chat, found).at(-1)) found = child.id;
  return found;
}
