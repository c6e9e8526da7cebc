// Records of the database, which may be anything after a fault: what is not as it should be is mended as far as it can be,
// so that one bad record takes nothing else with it.

import { callsOf } from "./calls";
import { filesOf } from "./files";
import { settingsOf } from "./settings";
import type { Conversation, Message, MessageState, Statistics } from "./tree";

export type Head = Omit<Conversation, "messages">;
export type Row = Message & { conversation: string; order: number };

export interface Joined {
  readonly chat: Conversation;
  readonly mended: ReadonlySet<string>; // names of messages that are not, or not so, in the database
  readonly numDamaged: number; // records
}

const STATES = new Set<unknown>(["waiting", "streaming", "done", "truncated", "stopped", "failed", "lost"]);

type Found = Record<string, unknown>;
type Draft = Omit<Message, "role"> & { readonly role: Message["role"] | null }; // null = the record does not say it

export function isState(value: unknown): value is MessageState {
  return STATES.has(value);
}

// A conversation of its records; null if the first has no name.
export function joined(head: unknown, rows: readonly unknown[]): Joined | null {
  const found = objectOf(head);
  const { id, title, draft } = found;
  if (typeof id !== "string") return null;
  const mended = new Set<string>();
  let numDamaged = 0;
  const drafts = inOrder(rows).flatMap((row) => {
    const made = draftOf(row);
    if (!made || made.isDamaged) numDamaged += 1;
    if (made?.isDamaged) mended.add(made.draft.id);
    return made ? [made.draft] : [];
  });
  const messages = inTree(drafts, mended);
  const last = [...messages.keys()].at(-1) ?? null;
  const leaf = found["leaf"];
  if (typeof title !== "string" || typeof draft !== "string" || !isTime(found["created"]) || !isTime(found["changed"])) numDamaged += 1;
  return {
    chat: {
      id,
      title: textOf(title),
      created: timeOf(found["created"]),
      changed: timeOf(found["changed"]),
      draft: textOf(draft),
      draftFiles: filesOf(found["draftFiles"]), // which an older page's conversation has not
      settings: settingsOf(found["settings"]),
      leaf: leaf === null || (typeof leaf === "string" && messages.has(leaf)) ? leaf : last,
      start: typeof found["start"] === "string" ? found["start"] : null,
      messages,
    },
    mended,
    numDamaged: Math.max(numDamaged, mended.size),
  };
}

export function statisticsOf(value: unknown): Statistics | null {
  const found = objectOf(value);
  const isRate = found["tokensPerSecond"] === null || isTime(found["tokensPerSecond"]);
  if (!isTime(found["tokens"]) || !isTime(found["contextTokens"]) || !isRate) return null;
  const isEach = ["firstSeconds", "thoughtSeconds", "cachedTokens"].every((name) => found[name] === undefined || isTime(found[name]));
  return isEach ? (found as unknown as Statistics) : null;
}

// By time, then by the order in which they were made: of an older page's records that alone can be wrong.
function inOrder(rows: readonly unknown[]): Found[] {
  const key = (row: Found, name: string): number => timeOf(row[name]);
  return rows.map(objectOf).sort((one, other) => key(one, "created") - key(other, "created") || key(one, "order") - key(other, "order"));
}

function draftOf(row: Found): { draft: Draft; isDamaged: boolean } | null {
  const { id, parent, role, text, state, error, code, model, response, received } = row;
  if (typeof id !== "string") return null;
  const isRole = role === "user" || role === "assistant";
  const isParent = parent === null || typeof parent === "string";
  const files = filesOf(row["files"]);
  const calls = callsOf(row["calls"]);
  const statistics = statisticsOf(row["statistics"]);
  const draft: Draft = {
    id,
    parent: isParent ? parent : null,
    role: isRole ? role : null,
    text: textOf(text),
    state: isState(state) ? state : "lost",
    created: timeOf(row["created"]),
    ...(files.length > 0 && { files }),
    ...(calls.length > 0 && { calls }),
    ...(row["isJson"] === true && { isJson: true }),
    ...(statistics && { statistics }),
    ...(typeof error === "string" && { error }),
    ...(typeof code === "string" && { code }),
    ...(typeof model === "string" && { model }),
    ...(typeof response === "string" && { response }),
    ...(isTime(received) && { received }),
  };
  const isDamaged = !isRole || !isParent || typeof text !== "string" || !isState(state) || !isTime(row["created"]);
  return { draft, isDamaged };
}

// Each message after the one above it. An answer whose question is not there gets an empty one.
function inTree(drafts: readonly Draft[], mended: Set<string>): Map<string, Message> {
  const byName = new Map(drafts.map((draft) => [draft.id, draft]));
  const placed = new Map<string, Message>();
  for (const draft of drafts) {
    const chain: Draft[] = [];
    const seen = new Set<string>();
    for (let above: Draft | undefined = draft; above && !placed.has(above.id) && !seen.has(above.id); ) {
      chain.push(above);
      seen.add(above.id);
      above = above.parent === null ? undefined : byName.get(above.parent);
    }
    for (const next of chain.reverse()) place(next, placed, mended);
  }
  return placed;
}

function place(draft: Draft, placed: Map<string, Message>, mended: Set<string>): void {
  const above = draft.parent === null ? undefined : placed.get(draft.parent);
  const role = draft.role ?? (above?.role === "user" ? "assistant" : "user");
  let parent = above?.id ?? null;
  if (parent !== draft.parent) mended.add(draft.id);
  if (role === "assistant" && above?.role !== "user") {
    const question: Message = { id: `${draft.id}-above`, parent, role: "user", text: "", state: "done", created: draft.created };
    placed.set(question.id, question);
    mended.add(question.id).add(draft.id);
    parent = question.id;
  }
  placed.set(draft.id, { ...draft, parent, role });
}

function objectOf(value: unknown): Found {
  return (typeof value === "object" && value !== null ? value : {}) as Found;
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function isTime(value: unknown): value is number {
  return typeof value === "number" && Number.isFinite(value);
}

function timeOf(value: unknown): number {
  return isTime(value) ? value : 0;
}
