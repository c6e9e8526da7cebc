// The last ten seconds as a file that the Perfetto UI opens: Chromium's "Trace Event Format", times in µs.

import { lanesOf } from "./draw";
import type { Lane } from "./draw";
import type { Span, View } from "./feed";

const LANES = { host: 1, model: 2, attention: 3, upload: 4, wire: 5, requests: 100 };

type TraceEvent = Record<string, unknown>;

export function traceOf(view: View, names: Record<Lane | "request", string>): string {
  const start = Math.min(...view.steps.map(({ begun }) => begun), view.at);
  const at = (time: number): number => Math.round((time - start) * 1000);
  const events: TraceEvent[] = lanesOf(view).map((name) => lane(LANES[name], names[name]));
  for (const [begin, length] of view.upload.filter(([begin]) => begin >= start)) {
    events.push({ ph: "X", pid: 1, tid: LANES.upload, name: "weights", ts: at(begin), dur: Math.round(length * 1000) });
  }
  for (const [time] of view.wire.filter(([time]) => time >= start)) {
    events.push({ ph: "i", s: "t", pid: 1, tid: LANES.wire, name: "text", ts: at(time) });
  }
  const requests = new Set<number>();
  for (const step of view.steps) {
    const args = { decodes: step.decodes.length, prompt_tokens: step.prompts.reduce((sum, [, tokens]) => sum + tokens, 0) };
    const span = ([begin, length]: Span, tid: number): TraceEvent => ({
      ph: "X", pid: 1, tid, name: `step ${step.number}`, ts: at(begin), dur: Math.round(length * 1000), args,
    });
    events.push(span(step.host, LANES.host));
    for (const one of step.model) events.push(span(one, LANES.model));
    for (const one of step.attention) events.push(span(one, LANES.attention));
    const parts = [...step.decodes.map((sequence) => [sequence, 1] as const), ...step.prompts];
    for (const [sequence, tokens] of parts) {
      requests.add(sequence);
      events.push({
        ph: "X", pid: 1, tid: LANES.requests + sequence, name: tokens === 1 ? "token" : `${tokens} tokens`,
        ts: at(step.begun), dur: Math.round((step.ended - step.begun) * 1000), args: { step: step.number },
      });
    }
  }
  for (const sequence of requests) events.push(lane(LANES.requests + sequence, `${names.request} ${sequence}`));
  return JSON.stringify({ traceEvents: events, displayTimeUnit: "ms" });
}

function lane(tid: number, name: string): TraceEvent {
  return { ph: "M", pid: 1, tid, name: "thread_name", args: { name } };
}
