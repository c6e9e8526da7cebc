import { expect, test } from "vitest";
import { NOTHING, summary, tokensOf, withEvent, withSpan } from "./feed";
import type { StepsEvent } from "./feed";
import { traceOf } from "./trace";

const GROUP = { window: 0, blocks: 8, planned: 16, used: 3, owners: { "3": [0, 2], "5": [4, 1] } };

function event(number: number, more: Partial<StepsEvent> = {}): StepsEvent {
  const step = { number, begun: 30, ended: 10, host_ms: 0.5, device: [28, 17] as const, decodes: [3], prompts: [[4, 64]] as const };
  return { dropped: 0, running: 2, waiting: 1, preemptions: 0, steps: [step], own: { "3": "a" }, cache: [GROUP], ...more };
}

test("steps are laid by the page's clock and kept for ten seconds", () => {
  const first = withEvent(NOTHING, event(1), 1000);
  expect(first.steps[0]).toMatchObject({ number: 1, begun: 970, ended: 990, host: [970, 0.5], model: [[972, 17]], attention: [] });
  const later = withEvent(first, event(2), 10_500);
  expect(later.steps.map(({ number }) => number)).toEqual([1, 2]);
  expect(withEvent(later, event(3), 12_000).steps.map(({ number }) => number)).toEqual([2, 3]);
  expect(withEvent(later, event(4, { steps: [] }), 30_000).steps).toEqual([]);
});

test("steps of two devices have a lane for each, and one that waited for layers has none", () => {
  const base = { number: 1, begun: 30, ended: 10, host_ms: 1, decodes: [], prompts: [] };
  const two = { ...base, model_device: [[30, 5]] as const, attention_device: [[25, 5], [18, 2]] as const };
  const view = withEvent(NOTHING, event(1, { steps: [two, base] }), 100);
  expect(view.steps.map(({ model, attention }) => [model.length, attention.length])).toEqual([[1, 2], [0, 0]]);
});

test("one's own requests are known as long as they are to be seen", () => {
  const first = withEvent(NOTHING, event(1), 1000);
  expect([...first.own]).toEqual([3]);
  const gone = withEvent(first, event(2, { steps: [], own: {}, cache: [{ ...GROUP, owners: {} }] }), 20_000);
  expect([...gone.own]).toEqual([]);
});

test("what was dropped adds up, and heaps stay until others come", () => {
  const heaps = [{ heap: "VRAM", planned: 2, allocated: 1 }];
  const view = withEvent(withEvent(NOTHING, event(1, { dropped: 2, heaps }), 0), event(2, { dropped: 3 }), 1);
  expect(view.dropped).toBe(5);
  expect(view.heaps).toEqual(heaps);
});

test("a window of time is summed up, and spans over each other count once", () => {
  const view = withEvent(withEvent(NOTHING, event(1), 1000), event(2), 1005);
  expect(view.steps.map(tokensOf)).toEqual([{ read: 64, written: 1 }, { read: 64, written: 1 }]);
  const found = summary(view, 950, 1000);
  expect(found).toMatchObject({ steps: 2, read: 128, written: 2 });
  expect(found.busy).toBeCloseTo(22 / 50);
});

test("the trace has a lane for each device and request, in microseconds", () => {
  const view = withSpan(withEvent(NOTHING, event(7), 1000), "wire", [995, 0]);
  const lanes = { host: "Host", model: "GPU", attention: "NPU", upload: "Upload", wire: "Wire", request: "Request" };
  const { traceEvents } = JSON.parse(traceOf(view, lanes)) as { traceEvents: Record<string, unknown>[] };
  const names = traceEvents.filter(({ ph }) => ph === "M").map(({ args }) => (args as { name: string }).name);
  expect(names).toEqual(["Host", "GPU", "Wire", "Request 3", "Request 4"]);
  expect(traceEvents.filter(({ ph }) => ph === "i").map(({ ts }) => ts)).toEqual([25_000]);
  const spans = traceEvents.filter(({ ph }) => ph === "X").map(({ tid, name, ts, dur }) => [tid, name, ts, dur]);
  expect(spans).toEqual([
    [1, "step 7", 0, 500],
    [2, "step 7", 2000, 17000],
    [103, "token", 0, 20000],
    [104, "64 tokens", 0, 20000],
  ]);
});
