import { expect, test } from "vitest";
import { english } from "../strings/english";
import { german } from "../strings/german";
import { exported, ImportError, imported } from "./transfer";
import { emptyConversation, pathTo, reduce, sentFor } from "./tree";
import type { Conversation } from "./tree";

function chat(): Conversation {
  const asked = reduce(emptyConversation("c", 1), { type: "ask", question: "q", answer: "a", text: "Hi", files: [], at: 1 });
  return reduce(asked, { type: "delta", answer: "a", text: "Hel", received: 2 });
}

test("what was exported comes back under other names, and what grew is lost", () => {
  const [back] = imported(exported([{ ...chat(), title: "Mine", draft: "more" }]));
  expect(back).toMatchObject({ title: "Mine", draft: "more" });
  expect(back?.id).not.toBe("c");
  const path = pathTo(back ?? chat(), back?.leaf ?? null);
  expect(path.map(({ text, state }) => [text, state])).toEqual([["Hi", "done"], ["Hel", "lost"]]);
  expect(path.some(({ id }) => id === "a" || id === "q")).toBe(false);
  expect(sentFor(back ?? chat(), back?.leaf ?? "")).toEqual([{ role: "user", content: "Hi" }]);
});

test("an export whose messages have one time, in any order, comes back whole, statistics included", () => {
  const statistics = { tokens: 1, contextTokens: 2, tokensPerSecond: null };
  const done = reduce(chat(), { type: "done", answer: "a", isTruncated: false, statistics });
  const asked = reduce(done, { type: "ask", question: "r", answer: "b", text: "And?", files: [], at: 1 });
  const mixed = { ...asked, messages: new Map([...asked.messages].reverse()) };
  const [back] = imported(exported([mixed]));
  const path = pathTo(back ?? chat(), back?.leaf ?? null);
  expect(path.map(({ text }) => text)).toEqual(["Hi", "Hel", "And?", ""]);
  expect(path[1]?.statistics).toEqual(statistics);
});

const message = { id: "q", parent: null, role: "user", state: "done", text: "Hi", created: 1 };
const file = { format: "unicorn-chat", version: 1 };
const head = { title: "", draft: "", created: 1, changed: 1, leaf: "q", start: null };

test.each([
  ["no JSON", "{"],
  ["null", "null"],
  ["another format", JSON.stringify({ format: "other" })],
  ["a later version", JSON.stringify({ ...file, version: 2 })],
  ["no list", JSON.stringify({ ...file, conversations: {} })],
  ...[
    { messages: [{ ...message, parent: "q" }] },
    { messages: [message, message] },
    { messages: [{ ...message, parent: "r" }, { ...message, id: "r", role: "assistant", parent: "q" }] },
    { messages: [{ ...message, role: "system" }] },
    { messages: [{ ...message, state: "unknown" }] },
    { messages: [{ ...message, text: { toString: "x" } }] },
    { messages: [{ ...message, role: "assistant" }] },
    { messages: [message, { ...message, id: "r", parent: "q", role: "assistant" }, { ...message, id: "s", parent: "r", role: "assistant" }] },
    { messages: [{ ...message, created: "1" }] },
    { messages: [null] },
  ].map((part) => [JSON.stringify(part), JSON.stringify({ ...file, conversations: [{ ...head, ...part }] })] as const),
] as [string, string][])("a file with %s is refused", (_, text) => {
  expect(() => imported(text)).toThrow(ImportError);
});

test.each([english, german])("each refusal has its words", ({ importErrors }) => {
  expect(Object.values(importErrors).map((words) => words("x"))).not.toContain("");
});

test("a refusal names what is wrong", () => {
  const text = JSON.stringify({ ...file, version: 9 });
  expect(() => imported(text)).toThrow(new ImportError("version", "9"));
  expect(german.importErrors.version("9")).toBe("diese Seite kennt ihre Version 9 nicht");
});
