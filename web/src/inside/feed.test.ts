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
  const found = summary(view, 980, 1000);
  expect(found).toMatchObject({ steps: 2, read: 128, written: 2, seconds: 0.02 });
  expect(found.busy).toBeCloseTo(14 / 20);
});

test("a window of which less was recorded is as long as that", () => {
  const view = withEvent(withEvent(NOTHING, event(1), 1000), event(2), 3000);
  expect(summary(view, view.at - 10_000, view.at)).toMatchObject({ steps: 2, seconds: 2.03 });
  expect(summary(view, view.at - 10_000, view.at).busy).toBeCloseTo(34 / 2030);
  expect(summary(view, 0, 500)).toMatchObject({ steps: 0, seconds: 0, busy: 0 });
  const later = withEvent(view, event(3), 60_000);
  expect(summary(later, later.at - 10_000, later.at).seconds).toBe(10);
});

test("where more steps come than are kept, what is known begins with the first of these", () => {
  const steps = Array.from({ length: 5000 }, (_, index) => ({
    number: index, begun: 5000 - index, ended: 4999 - index, host_ms: 0.1, decodes: [1], prompts: [],
  }));
  const view = withEvent(NOTHING, event(1, { steps }), 10_000);
  expect(summary(view, 0, 10_000)).toMatchObject({ steps: 4000, seconds: 4 });
});

test("the trace has a lane for each device and request, in microseconds", () => {
  const view = withSpan(withEvent(NOTHING, event(7), 1000), "wire", [995, 0]);
  const lanes = { host: "Host", model: "GPU", attention: "NPU", upload: "Upload", wire: "Wire", request: "Request" };
  const { traceEvents } = JSON.parse(traceOf(view, lanes)) as { traceEvents: Record<string, unknown>[] };
  const names = traceEvents.filter(({ name }) => name === "thread_name").map(({ args }) => (args as { name: string }).name);
  expect(names).toEqual(["Host", "GPU", "Wire", "Request 3", "Request 4"]);
  expect(traceEvents.filter(({ ph }) => ph === "i").map(({ tid, ts }) => [tid, ts])).toEqual([[3, 25_000]]);
  const spans = traceEvents.filter(({ ph }) => ph === "X").map(({ tid, name, ts, dur }) => [tid, name, ts, dur]);
  expect(spans).toEqual([
    [1, "step 7", 0, 500],
    [2, "step 7", 2000, 17000],
    [4, "token", 0, 20000],
    [5, "64 tokens", 0, 20000],
  ]);
});

test("spans of the trace that overlap lie on tracks of one name", () => {
  const step = { number: 0, host_ms: 0.5, decodes: [3], prompts: [] };
  const steps = [
    { ...step, begun: 60, ended: 40, device: [58, 17.5] as const },
    { ...step, begun: 45.0001, ended: 20.5, device: [41, 20] as const },
    { ...step, begun: 20.4999, ended: 3, device: [20, 12] as const },
  ];
  const view = withEvent(NOTHING, event(1, { steps }), 1000);
  const lanes = { host: "Host", model: "GPU", attention: "NPU", upload: "Upload", wire: "Wire", request: "Request" };
  const { traceEvents } = JSON.parse(traceOf(view, lanes)) as { traceEvents: Record<string, unknown>[] };
  const names = new Map(traceEvents.filter(({ name }) => name === "thread_name").map(({ tid, args }) => [tid, (args as { name: string }).name]));
  const spans = traceEvents.filter(({ ph }) => ph === "X") as unknown as { tid: number; ts: number; dur: number }[];
  const tracksOf = (name: string): number => [...names.values()].filter((one) => one === name).length;
  expect([tracksOf("GPU"), tracksOf("Request 3")]).toEqual([2, 2]);
  for (const tid of names.keys()) {
    const track = spans.filter((span) => span.tid === tid).sort((one, other) => one.ts - other.ts);
    expect(track.every(({ ts }, index) => index === 0 || ts >= (track[index - 1]?.ts ?? 0) + (track[index - 1]?.dur ?? 0))).toBe(true);
  }
});
