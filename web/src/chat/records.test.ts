import { expect, test } from "vitest";
import { joined } from "./records";
import { exported, imported } from "./transfer";
import { pathTo, sentFor } from "./tree";

const head = { id: "c", title: "Mine", created: 1, changed: 2, draft: "", draftFiles: [], settings: {}, leaf: "a", start: null };

function row(id: string, parent: string | null, role: string, more: object = {}): object {
  return { id, parent, role, text: id, state: "done", created: 1, conversation: "c", order: 0, ...more };
}

function shown(rows: object[], of: object = head) {
  const found = joined(of, rows);
  if (!found) throw new Error("no conversation");
  return { ...found, path: pathTo(found.chat, found.chat.leaf).map(({ id, role, text }) => [id, role, text]) };
}

test("records as they should be are read as they are", () => {
  const files = [{ name: "f", text: "t" }];
  const calls = [{ id: "fc", name: "f", arguments: "{}" }];
  const statistics = { tokens: 1, contextTokens: 2, tokensPerSecond: null };
  const { chat, numDamaged, mended } = shown([row("q", null, "user", { files }), row("a", "q", "assistant", { statistics, received: 3, calls, isJson: true })]);
  expect([numDamaged, mended.size]).toEqual([0, 0]);
  expect(chat.messages.get("q")).toEqual({ id: "q", parent: null, role: "user", text: "q", state: "done", created: 1, files });
  expect(chat.messages.get("a")).toMatchObject({ statistics, received: 3, calls, isJson: true });
});

test("messages of one time stand below what they answer, in whatever order they were found", () => {
  const { chat, numDamaged } = shown([row("a", "q", "assistant"), row("q", null, "user"), row("r", "a", "user")]);
  expect([...chat.messages.keys()]).toEqual(["q", "a", "r"]);
  expect(numDamaged).toBe(0);
});

test.each([
  ["a text that is none", row("a", "q", "assistant", { text: { html: "<b>" } }), ["a", "assistant", ""]],
  ["no role", row("a", "q", "model"), ["a", "assistant", "a"]],
  ["an unknown state", row("a", "q", "assistant", { state: 7 }), ["a", "assistant", "a"]],
  ["statistics that are none", row("a", "q", "assistant", { created: "x", statistics: { tokens: "many", contextTokens: 1 } }), ["a", "assistant", "a"]],
])("a message with %s is mended, and the rest stays", (_, bad, expected) => {
  const { path, numDamaged, chat } = shown([row("q", null, "user"), bad, row("r", "a", "user", { created: 2 })], { ...head, leaf: "r" });
  expect(path).toEqual([["q", "user", "q"], expected, ["r", "user", "r"]]);
  expect(numDamaged).toBe(1);
  expect(chat.messages.get("a")?.statistics).toBeUndefined();
});

test("where what is above is missing, or stands in a circle, turns go on alternating, and can be written and read", () => {
  const rows = [row("a", "gone", "assistant"), row("b", "c", "assistant"), row("c", "b", "user"), row("d", "a", "assistant")];
  for (const leaf of ["a", "c", "d", "unknown"]) {
    const { path, chat, numDamaged } = shown(rows, { ...head, leaf });
    expect(path.map(([, role]) => role)).toEqual(path.map((_, index) => (index % 2 ? "assistant" : "user")));
    expect(numDamaged).toBeGreaterThan(0);
    expect(sentFor(chat, chat.leaf ?? "").every(({ role }, index) => role === (index % 2 ? "assistant" : "user"))).toBe(true);
    expect(imported(exported([chat]))[0]?.messages.size).toBe(chat.messages.size);
  }
});

test("a question below one whose answer was deleted is as it should be, here and in a file", () => {
  const { chat, numDamaged, path } = shown([row("q", null, "user"), row("r", "q", "user"), row("b", "r", "assistant")], { ...head, leaf: "b" });
  expect([numDamaged, path.length]).toEqual([0, 3]);
  expect(imported(exported([chat]))[0]?.messages.size).toBe(3);
});

test("a conversation's record may lack everything but its name", () => {
  const { chat, numDamaged } = shown([row("q", null, "user")], { id: "c" });
  expect(chat).toMatchObject({ id: "c", title: "", draft: "", leaf: "q", start: null });
  expect(numDamaged).toBe(1);
  expect(joined({ id: 7 }, [])).toBeNull();
  expect(joined(null, [])).toBeNull();
});
