// What the engine's steps did in the last seconds, from the server's events. Times are ms of this page's clock.

export const KEPT_MS = 10_000;
const MAX_STEPS = 4000;

export interface StepsEvent {
  readonly dropped: number;
  readonly running: number;
  readonly waiting: number;
  readonly preemptions: number;
  readonly steps: readonly SentStep[];
  readonly own: Readonly<Record<string, string | null>>;
  readonly cache: readonly BlockGroup[];
  readonly heaps?: readonly Heap[];
}

// As docs/serving.md has it: times are ms before the event.
interface SentStep {
  readonly number: number;
  readonly begun: number;
  readonly ended: number;
  readonly host_ms: number;
  readonly device?: readonly [number, number];
  readonly model_device?: readonly (readonly [number, number])[];
  readonly attention_device?: readonly (readonly [number, number])[];
  readonly decodes: readonly number[];
  readonly prompts: readonly (readonly [number, number])[];
}

export interface BlockGroup {
  readonly window: number;
  readonly blocks: number;
  readonly planned: number;
  readonly used: number;
  readonly owners: Readonly<Record<string, readonly number[]>>;
}

export interface Heap {
  readonly heap: string;
  readonly planned: number;
  readonly allocated: number;
}

export type Span = readonly [start: number, length: number];

export interface Step {
  readonly number: number;
  readonly begun: number;
  readonly ended: number;
  readonly host: Span;
  readonly model: readonly Span[]; // the GPU, or the one of two devices that runs the model
  readonly attention: readonly Span[]; // another device that attends
  readonly decodes: readonly number[];
  readonly prompts: readonly (readonly [number, number])[];
}

export interface View {
  readonly steps: readonly Step[]; // of the last ten seconds, in order
  readonly own: ReadonlySet<number>;
  readonly cache: readonly BlockGroup[];
  readonly heaps: readonly Heap[];
  readonly running: number;
  readonly waiting: number;
  readonly preemptions: number;
  readonly dropped: number; // steps that this page was not told of
  readonly since: number; // when the first of what is kept began
  readonly at: number; // when the last event came
  readonly upload: readonly Span[]; // times in which weights came to the device
  readonly wire: readonly Span[]; // when text came over the websocket
}

export const NOTHING: View = {
  steps: [], own: new Set(), cache: [], heaps: [], running: 0, waiting: 0, preemptions: 0, dropped: 0, since: 0, at: 0,
  upload: [], wire: [],
};

export function withEvent(view: View, event: StepsEvent, now: number): View {
  const steps = [...view.steps, ...event.steps.map((step) => placed(step, now))];
  const first = Math.max(0, steps.length - MAX_STEPS, steps.findIndex(({ ended }) => ended >= now - KEPT_MS));
  const kept = steps.length && (steps.at(-1)?.ended ?? 0) < now - KEPT_MS ? [] : steps.slice(first);
  const seen = new Set(kept.flatMap(({ decodes, prompts }) => [...decodes, ...prompts.map(([sequence]) => sequence)]));
  for (const { owners } of event.cache) for (const owner of Object.keys(owners)) seen.add(Number(owner));
  const begun = view.at ? view.since : Math.min(now, ...event.steps.map((step) => now - step.begun));
  const own = [...view.own, ...Object.keys(event.own).map(Number)].filter((sequence) => seen.has(sequence));
  return {
    steps: kept,
    own: new Set(own),
    cache: event.cache,
    heaps: event.heaps ?? view.heaps,
    running: event.running,
    waiting: event.waiting,
    preemptions: event.preemptions,
    dropped: view.dropped + event.dropped,
    since: Math.max(begun, now - KEPT_MS, steps.length > MAX_STEPS ? (kept[0]?.begun ?? now) : 0),
    at: now,
    upload: recent(view.upload, now),
    wire: recent(view.wire, now),
  };
}

// With one more time in a lane of what this page sees itself.
export function withSpan(view: View, lane: "upload" | "wire", span: Span): View {
  return { ...view, [lane]: [...view[lane], span].slice(-MAX_STEPS) };
}

function recent(spans: readonly Span[], now: number): readonly Span[] {
  return spans.filter(([start, length]) => start + length >= now - KEPT_MS);
}

function placed(step: SentStep, now: number): Step {
  const at = (span: readonly [number, number]): Span => [now - span[0], span[1]];
  return {
    number: step.number,
    begun: now - step.begun,
    ended: now - step.ended,
    host: [now - step.begun, step.host_ms],
    model: (step.model_device ?? (step.device ? [step.device] : [])).map(at),
    attention: (step.attention_device ?? []).map(at),
    decodes: step.decodes,
    prompts: step.prompts,
  };
}

// Tokens of a step: those of prompts that were read, and those that were written.
export function tokensOf({ decodes, prompts }: Step): { read: number; written: number } {
  return { read: prompts.reduce((sum, [, tokens]) => sum + tokens, 0), written: decodes.length };
}

export interface Summary {
  readonly steps: number;
  readonly read: number;
  readonly written: number;
  readonly seconds: number; // of the window, of which something is known
  readonly busy: number; // the share of these
}

// What a window of time had, for people who read numbers.
export function summary(view: View, begin: number, to: number): Summary {
  const from = Math.max(begin, view.since);
  const steps = view.steps.filter(({ ended }) => ended > from && ended <= to);
  const tokens = steps.map(tokensOf);
  const spans = steps.flatMap(({ model }) => model);
  return {
    steps: steps.length,
    read: tokens.reduce((sum, { read }) => sum + read, 0),
    written: tokens.reduce((sum, { written }) => sum + written, 0),
    seconds: Math.max(0, to - from) / 1000,
    busy: to > from ? Math.min(1, covered(spans, from, to) / (to - from)) : 0,
  };
}

// How long spans, which may lie over each other, cover a time.
function covered(spans: readonly Span[], from: number, to: number): number {
  let total = 0;
  let end = from;
  for (const [start, length] of [...spans].sort((one, other) => one[0] - other[0])) {
    const stop = Math.min(to, start + length);
    total += Math.max(0, stop - Math.max(end, start));
    end = Math.max(end, stop);
  }
  return total;
}
