import { expect, test } from "vitest";
import { callsOf, withCallEvent } from "./calls";
import type { Call } from "./calls";
import { exported, imported } from "./transfer";
import { emptyConversation, reduce } from "./tree";

const item = { type: "function_call", id: "fc_1", call_id: "call_1", name: "weather", arguments: "", status: "in_progress" };

function after(...events: Record<string, unknown>[]): readonly Call[] {
  return events.reduce<readonly Call[]>(withCallEvent, []);
}

test("a call's arguments grow by what comes, and end as the server says", () => {
  const added = { type: "response.output_item.added", output_index: 0, item };
  const delta = { type: "response.function_call_arguments.delta", item_id: "fc_1", delta: '{"city":' };
  expect(after(added)).toEqual([{ id: "fc_1", name: "weather", arguments: "" }]);
  expect(after(added, delta, { ...delta, delta: '"Ulm"' })[0]?.arguments).toBe('{"city":"Ulm"');
  const done = { type: "response.function_call_arguments.done", item_id: "fc_1", arguments: '{"city":"Ulm"}' };
  expect(after(added, delta, done)[0]?.arguments).toBe('{"city":"Ulm"}');
  const ended = { type: "response.output_item.done", item: { ...item, arguments: "{}", status: "completed" } };
  expect(after(added, delta, ended)).toEqual([{ id: "fc_1", name: "weather", arguments: "{}" }]);
  expect(after(added, { ...added, item: { ...item, id: "fc_2" } }, { ...delta, item_id: "fc_2" }).map((call) => call.arguments)).toEqual([
    "", '{"city":',
  ]);
});

test("other events, and calls that nobody has begun, change nothing", () => {
  const none: readonly Call[] = [];
  const message = { type: "response.output_item.added", item: { type: "message", id: "msg_1" } };
  expect(withCallEvent(none, message)).toBe(none);
  expect(withCallEvent(none, { type: "response.function_call_arguments.delta", item_id: "fc_9", delta: "x" })).toBe(none);
});

test("what is no call in a file is left out", () => {
  const call = { id: "a", name: "f", arguments: "{}" };
  expect(callsOf([call, { ...call, more: 1 }, { id: "b" }, null, "x", 3])).toEqual([call, call]);
  expect(callsOf("x")).toEqual([]);
});

test("calls and the format of an answer travel in a file", () => {
  const calls = [{ id: "a", name: "f", arguments: "{}" }];
  const events = [
    { type: "ask", question: "q", answer: "a", text: "?", files: [], at: 1 },
    { type: "created", answer: "a", model: "m", response: "r", received: 0, isJson: true },
    { type: "delta", answer: "a", text: "{}", received: 1, calls },
    { type: "done", answer: "a", isTruncated: false },
  ] as const;
  const [chat] = imported(exported([events.reduce(reduce, emptyConversation("c", 0))]));
  expect([...(chat?.messages.values() ?? [])][1]).toMatchObject({ text: "{}", calls, isJson: true });
});
