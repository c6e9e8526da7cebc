import { expect, test } from "vitest";
import { merged } from "./merge";
import { emptyConversation, reduce } from "./tree";
import type { ChatEvent, Conversation } from "./tree";

function after(chat: Conversation, ...events: ChatEvent[]): Conversation {
  return events.reduce(reduce, chat);
}

function ask(number: number): ChatEvent {
  return { type: "ask", question: `q${number}`, answer: `a${number}`, text: `question ${number}`, files: [], at: number };
}

function delta(number: number, text: string): ChatEvent {
  return { type: "delta", answer: `a${number}`, text, received: 1 };
}

const done = (number: number): ChatEvent => ({ type: "done", answer: `a${number}`, isTruncated: false });
const base = after(emptyConversation("c", 0), ask(1), delta(1, "one"), done(1));

function names(chat: Conversation): string[] {
  return [...chat.messages.keys()];
}

test("what nobody changed here is what the other tab has written", () => {
  const theirs = structuredClone(after(base, ask(2)));
  expect(merged(base, base, theirs)).toBe(theirs);
});

test("what was asked in both tabs stays, and an answer that grows here is newer here", () => {
  const both = after(base, ask(2));
  const mine = after(both, delta(2, "growing"), { type: "draft", text: "mine" });
  const theirs = after(both, { type: "select", message: "a1" }, { type: "retry", message: "a1", answer: "b1", at: 3 }, { type: "draft", text: "theirs" });
  const next = merged(both, mine, theirs);
  expect(names(next)).toEqual(["q1", "a1", "q2", "a2", "b1"]);
  expect(next.messages.get("a2")?.text).toBe("growing");
  expect([next.leaf, next.draft]).toEqual(["b1", "mine"]);
  expect(names(merged(base, after(base, ask(4)), after(base, ask(5))))).toEqual(["q1", "a1", "q5", "a5", "q4", "a4"]);
});

test("what either tab deleted is gone, with what was made below it meanwhile", () => {
  const both = after(base, ask(2));
  const mine = after(both, delta(2, "growing"));
  const without = after(both, { type: "delete", message: "q2" });
  expect(names(merged(both, mine, without))).toEqual(["q1", "a1"]);
  expect(merged(both, mine, without).leaf).toBe("a1");
  expect(names(merged(both, without, mine))).toEqual(["q1", "a1"]);
  expect(names(merged(base, after(base, ask(3)), after(base, { type: "delete", message: "q1" })))).toEqual([]);
});

test("an answer that was ended in the other tab has ended", () => {
  const both = after(base, ask(2));
  const mine = after(both, delta(2, "growing"));
  expect(merged(both, mine, after(both, { type: "stopped", answer: "a2", isTold: true })).messages.get("a2")?.state).toBe("stopped");
  const ended = after(mine, done(2));
  expect(merged(both, ended, both).messages.get("a2")?.state).toBe("done");
});

test("title and settings are those of who changed them", () => {
  const mine = after(base, { type: "rename", title: "Mine" });
  const theirs = after(base, { type: "settings", settings: { system: "Be brief", values: {} } });
  expect(merged(base, mine, theirs)).toMatchObject({ title: "Mine", settings: { system: "Be brief" } });
});
