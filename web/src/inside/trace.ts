// The last ten seconds as a file that the Perfetto UI opens: Chromium's "Trace Event Format", times in µs. Spans of one
// track may not overlap there, so that those that do lie on tracks beside each other.

import { lanesOf } from "./draw";
import type { Lane } from "./draw";
import type { Span, View } from "./feed";

type TraceEvent = Record<string, unknown>;

export function traceOf(view: View, names: Record<Lane | "request", string>): string {
  const start = Math.min(...view.steps.map(({ begun }) => begun), view.at);
  const tracks = new Tracks(start);
  const lanes = new Map(lanesOf(view).map((name) => [name, tracks.lane(names[name])]));
  for (const span of view.upload.filter(([begin]) => begin >= start)) lanes.get("upload")?.add("weights", span);
  for (const [time] of view.wire.filter(([time]) => time >= start)) lanes.get("wire")?.mark("text", time);
  const requests = new Map<number, ReturnType<typeof tracks.lane>>();
  for (const step of view.steps) {
    const name = `step ${step.number}`;
    const args = { decodes: step.decodes.length, prompt_tokens: step.prompts.reduce((sum, [, tokens]) => sum + tokens, 0) };
    lanes.get("host")?.add(name, step.host, args);
    for (const span of step.model) lanes.get("model")?.add(name, span, args);
    for (const span of step.attention) lanes.get("attention")?.add(name, span, args);
    const parts = [...step.decodes.map((sequence) => [sequence, 1] as const), ...step.prompts];
    for (const [sequence, tokens] of parts) {
      const lane = requests.get(sequence) ?? tracks.lane(`${names.request} ${sequence}`);
      requests.set(sequence, lane);
      const span: Span = [step.begun, step.ended - step.begun];
      lane.add(tokens === 1 ? "token" : `${tokens} tokens`, span, { step: step.number });
    }
  }
  return JSON.stringify({ traceEvents: tracks.events, displayTimeUnit: "ms" });
}

interface TraceLane {
  add(name: string, span: Span, args?: object): void;
  mark(name: string, time: number): void;
}

class Tracks {
  readonly events: TraceEvent[] = [];
  private numLanes = 0;
  private numTracks = 0;

  constructor(private readonly start: number) {}

  lane(name: string): TraceLane {
    const lane = ++this.numLanes;
    const tracks = [{ tid: this.track(name, lane), end: 0 }];
    const at = (time: number): number => Math.round((time - this.start) * 1000);
    return {
      add: (what, [begin, length], args) => {
        const [ts, end] = [at(begin), at(begin + length)];
        let track = tracks.find((one) => one.end <= ts);
        if (!track) tracks.push((track = { tid: this.track(name, lane), end: 0 }));
        track.end = end;
        this.events.push({ ph: "X", pid: 1, tid: track.tid, name: what, ts, dur: end - ts, ...(args && { args }) });
      },
      mark: (what, time) => {
        this.events.push({ ph: "i", s: "t", pid: 1, tid: tracks[0]?.tid, name: what, ts: at(time) });
      },
    };
  }

  private track(name: string, sort_index: number): number {
    const tid = ++this.numTracks;
    this.events.push({ ph: "M", pid: 1, tid, name: "thread_name", args: { name } });
    this.events.push({ ph: "M", pid: 1, tid, name: "thread_sort_index", args: { sort_index } });
    return tid;
  }
}
