import { expect, test } from "vitest";
import { childNames, emptyConversation, pathTo, reduce, removal, sentFor, titleOf, trimmedStart, unanswered } from "./tree";
import type { ChatEvent, Conversation } from "./tree";

function after(...events: ChatEvent[]): Conversation {
  return events.reduce(reduce, emptyConversation("c", 0));
}

function ask(number: number, text = `question ${number}`): ChatEvent {
  return { type: "ask", question: `q${number}`, answer: `a${number}`, text, files: [], at: number };
}

function answered(number: number, text = `answer ${number}`): ChatEvent[] {
  const answer = `a${number}`;
  return [{ type: "delta", answer, text, received: 2 }, { type: "done", answer, isTruncated: false }];
}

function shown(chat: Conversation): string[] {
  return pathTo(chat, chat.leaf).map(({ id }) => id);
}

test("what is sent for an answer is the conversation above it, to its question", () => {
  const chat = after(ask(1), ...answered(1), ask(2));
  expect(sentFor(chat, "a2")).toEqual([
    { role: "user", content: "question 1" },
    { role: "assistant", content: "answer 1" },
    { role: "user", content: "question 2" },
  ]);
});

test.each<ChatEvent>([
  { type: "stopped", answer: "a1", isTold: true },
  { type: "failed", answer: "a1", error: "no room" },
  { type: "lost", answer: "a1" },
  { type: "done", answer: "a1", isTruncated: false },
])("a turn that ended without text ($type) is marked, stays, and is never sent", (end) => {
  const chat = after(ask(1), end, ask(2), ...answered(2), ask(3));
  expect(shown(chat)).toEqual(["q1", "a1", "q2", "a2", "q3", "a3"]);
  expect(unanswered(pathTo(chat, chat.leaf))).toEqual(new Set(["q1"]));
  expect(sentFor(chat, "a3").map(({ content }) => content)).toEqual(["question 2", "answer 2", "question 3"]);
});

test("an answer that was stopped after its first text is sent with its turn", () => {
  const chat = after(ask(1), { type: "delta", answer: "a1", text: "half", received: 2 }, { type: "stopped", answer: "a1", isTold: true }, ask(2));
  expect(sentFor(chat, "a2").map(({ content }) => content)).toEqual(["question 1", "half", "question 2"]);
});

test("what comes after an answer's end changes nothing", () => {
  const chat = after(ask(1), { type: "stopped", answer: "a1", isTold: true });
  expect(reduce(chat, { type: "delta", answer: "a1", text: "late", received: 2 })).toBe(chat);
  expect(reduce(chat, { type: "failed", answer: "a1", error: "late" })).toBe(chat);
  expect(reduce(chat, { type: "delta", answer: "unknown", text: "late", received: 2 })).toBe(chat);
});

test("a question asked again has a second answer beside the first", () => {
  const chat = after(ask(1), ...answered(1), { type: "retry", message: "a1", answer: "b1", at: 2 });
  expect(shown(chat)).toEqual(["q1", "b1"]);
  expect(childNames(chat).get("q1")).toEqual(["a1", "b1"]);
  expect(sentFor(chat, "b1")).toEqual([{ role: "user", content: "question 1" }]);
});

test("an edited question stands beside the old one, whose way can be chosen again to its end", () => {
  const edit: ChatEvent = { type: "edit", message: "q1", question: "r1", answer: "s1", text: "other", files: [], at: 3 };
  const chat = after(ask(1), ...answered(1), ask(2), ...answered(2), edit);
  expect(shown(chat)).toEqual(["r1", "s1"]);
  expect(sentFor(chat, "s1")).toEqual([{ role: "user", content: "other" }]);
  expect(shown(reduce(chat, { type: "select", message: "q1" }))).toEqual(["q1", "a1", "q2", "a2"]);
});

test("a deleted message takes with it what is below, and what stands beside it is shown", () => {
  const chat = after(ask(1), ...answered(1), ask(2), ...answered(2));
  expect(shown(reduce(chat, { type: "delete", message: "q2" }))).toEqual(["q1", "a1"]);
  const twice = reduce(chat, { type: "retry", message: "a1", answer: "b1", at: 4 });
  const left = reduce(twice, { type: "delete", message: "b1" });
  expect(shown(left)).toEqual(["q1", "a1", "q2", "a2"]);
  expect([...reduce(chat, { type: "delete", message: "q1" }).messages]).toEqual([]);
  expect(reduce(chat, { type: "delete", message: "q1" }).leaf).toBeNull();
});

test("deleting one way leaves the one that is shown", () => {
  const chat = after(ask(1), ...answered(1), { type: "retry", message: "a1", answer: "b1", at: 2 });
  expect(shown(reduce(chat, { type: "delete", message: "a1" }))).toEqual(["q1", "b1"]);
});

test("a question whose answer was deleted is not sent with what is asked then", () => {
  const chat = after(ask(1), ...answered(1), { type: "delete", message: "a1" }, ask(2), ...answered(2), ask(3));
  expect(shown(chat)).toEqual(["q1", "q2", "a2", "q3", "a3"]);
  expect(unanswered(pathTo(chat, chat.leaf))).toEqual(new Set(["q1"]));
  expect(sentFor(chat, "a3").map(({ content }) => content)).toEqual(["question 2", "answer 2", "question 3"]);
});

test("an answer under way is not unanswered, and has the model that gives it", () => {
  const chat = after(ask(1), { type: "created", answer: "a1", model: "m", response: "r", received: 0 });
  expect(unanswered(pathTo(chat, chat.leaf))).toEqual(new Set());
  expect(chat.messages.get("a1")).toMatchObject({ state: "waiting", model: "m" });
});

test("a conversation is named by its first question until it is renamed", () => {
  const chat = after(ask(1, "  What\nis it? "), ...answered(1));
  expect(titleOf(chat)).toBe("What is it?");
  expect(titleOf(reduce(chat, { type: "rename", title: " Mine " }))).toBe("Mine");
  expect(titleOf(emptyConversation("c", 0))).toBe("");
});

test("older turns are left out until they are sent again", () => {
  const chat = after(ask(1), ...answered(1), ask(2), ...answered(2), ask(3));
  const start = trimmedStart(chat, "a3");
  expect(start).toBe("q2");
  const trimmed = reduce(chat, { type: "trim", start });
  expect(sentFor(trimmed, "a3").map(({ content }) => content)).toEqual(["question 2", "answer 2", "question 3"]);
  expect(trimmedStart(trimmed, "a3")).toBe("q3");
  expect(trimmedStart(reduce(chat, { type: "trim", start: "q3" }), "a3")).toBeNull();
  expect(sentFor(reduce(trimmed, { type: "trim", start: null }), "a3").length).toBe(5);
});

test("an answer that is under way knows where it comes from, and one that has ended does not", () => {
  const created: ChatEvent = { type: "created", answer: "a1", model: "m", response: "resp_1", received: 0 };
  const begun = after(ask(1), created, { type: "delta", answer: "a1", text: "Hel", received: 4 });
  expect(begun.messages.get("a1")).toMatchObject({ response: "resp_1", received: 4 });
  const done = reduce(begun, { type: "done", answer: "a1", isTruncated: false });
  expect(done.messages.get("a1")).not.toHaveProperty("response");
  expect(done.messages.get("a1")).not.toHaveProperty("received");
});

test("what was deleted comes back to its place, and turns made since stay", () => {
  const before = after(ask(1), ...answered(1), ask(2), ...answered(2));
  const removed = removal(before, "q2");
  const since = reduce(reduce(before, { type: "delete", message: "q2" }), ask(3));
  const back = reduce(since, { type: "restore", removed });
  expect([...back.messages.keys()]).toEqual(["q1", "a1", "q2", "a2", "q3", "a3"]);
  expect(shown(back)).toEqual(["q1", "a1", "q3", "a3"]);
  expect(childNames(back).get("a1")).toEqual(["q2", "q3"]);
  const undone = reduce(reduce(before, { type: "delete", message: "q2" }), { type: "restore", removed });
  expect(shown(undone)).toEqual(["q1", "a1", "q2", "a2"]);
});

test("what stood below something that is gone by now does not come back alone", () => {
  const before = after(ask(1), ...answered(1), ask(2));
  const removed = removal(before, "q2");
  const gone = reduce(reduce(before, { type: "delete", message: "q2" }), { type: "delete", message: "q1" });
  expect([...reduce(gone, { type: "restore", removed }).messages.keys()]).toEqual([]);
});

test("an answer that was stopped while the server could not be told keeps its name until it is", () => {
  const begun = after({ ...ask(1), response: "resp_1" } as ChatEvent);
  const stopped = reduce(begun, { type: "stopped", answer: "a1", isTold: false });
  expect(stopped.messages.get("a1")).toMatchObject({ state: "stopped", response: "resp_1" });
  expect(reduce(stopped, { type: "told", answer: "a1" }).messages.get("a1")).not.toHaveProperty("response");
  expect(reduce(begun, { type: "told", answer: "a1" })).toBe(begun);
});

test("a question is edited with the files that are left", () => {
  const files = [{ name: "a", text: "large" }, { name: "b", text: "small" }];
  const asked: ChatEvent = { type: "ask", question: "q1", answer: "a1", text: "What?", files, at: 1 };
  const chat = after(asked, { type: "edit", message: "q1", question: "r1", answer: "b1", text: "What?", files: files.slice(1), at: 2 });
  expect(sentFor(chat, "b1")[0]?.content).not.toContain("large");
  expect(sentFor(chat, "a1")[0]?.content).toContain("large");
});

test("so many turns are left out that the rest is no more than a number", () => {
  const turns = Array.from({ length: 20 }, (_, index) => [ask(index, index ? "x" : "x".repeat(1000)), ...answered(index, "y")]).flat();
  const chat = after(...turns, ask(20));
  expect(trimmedStart(chat, "a20")).toBe("q1");
  expect(trimmedStart(chat, "a20", 11)).toBe("q15");
});
