import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { drawBlocks, drawLanes, drawSteps, lanesOf } from "../inside/draw";
import type { Frame } from "../inside/draw";
import { KEPT_MS, summary, tokensOf } from "../inside/feed";
import type { BlockGroup, View } from "../inside/feed";
import { traceOf } from "../inside/trace";
import { strings } from "../strings";
import { decimal } from "../strings/decimal";
import { usePage } from "./context";
import { isEscape } from "./keys";

const WINDOWS_MS = [10_000, 1000, 100];
const TABLE_ROWS = 20;
const SCRUB_MS = 100;

// Where tokens come from: the steps, the devices, the blocks of the KV cache, the memory.
export function InsideDrawer() {
  const { inside } = usePage();
  const [windowMs, setWindowMs] = useState(WINDOWS_MS[0] ?? KEPT_MS);
  const heading = useRef<HTMLHeadingElement>(null);
  const drawer = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    const { current } = drawer;
    heading.current?.focus();
    return () => {
      if (current?.contains(document.activeElement)) document.getElementById("inside-button")?.focus();
    };
  }, []);
  const view = inside.shown.value;
  const to = view.at - inside.back.value;
  const frame = { from: to - windowMs, to };
  return (
    <aside id="inside" aria-labelledby="inside-title" ref={drawer}
      onKeyDown={(event) => {
        if (!isEscape(event)) return;
        event.stopPropagation(); // which would stop the answer
        inside.toggle();
      }}>
      <div class="inside-head">
        <h2 id="inside-title" tabIndex={-1} ref={heading}>{strings.insideTitle}</h2>
        <button type="button" class="quiet" onClick={() => { inside.toggle(); }}>{strings.close}</button>
      </div>
      {inside.problem.value && <p class="problem" role="alert">{inside.problem.value}</p>}
      <Numbers view={view} frame={frame} />
      <div class="inside-controls">
        <label>
          <span class="hidden">{strings.timeShown}</span>
          <select value={windowMs} onChange={(event) => { setWindowMs(Number(event.currentTarget.value)); }}>
            {WINDOWS_MS.map((one) => <option key={one} value={one}>{strings.seconds(one / 1000)}</option>)}
          </select>
        </label>
        <Pause />
        <button type="button" class="quiet" disabled={!view.steps.length} onClick={() => { save(view); }}>{strings.saveTrace}</button>
      </div>
      <Scrub />
      <Drawing id="inside-steps" title={strings.stepsDrawing} label={strings.stepsLabel} draw={(canvas) => drawSteps(canvas, view, frame)} />
      <Drawing id="inside-lanes" title={lanesOf(view).map((lane) => strings.lanes[lane]).join(" · ")}
        label={strings.lanesLabel} draw={(canvas) => drawLanes(canvas, view, frame)} />
      {view.cache.map((group, index) => <Blocks key={index} view={view} group={group} />)}
      <Heaps view={view} />
      <EightAtOnce />
      <Table view={view} frame={frame} />
    </aside>
  );
}

function Numbers({ view, frame }: { view: View; frame: Frame }) {
  const { steps, read, written, seconds, busy } = summary(view, frame.from, frame.to);
  const perSecond = (count: number, digits: number): string => (seconds ? decimal(count / seconds, digits) : "–");
  const numbers = [
    [strings.running, String(view.running)],
    [strings.waitingRequests, String(view.waiting)],
    [strings.stepsPerSecond, perSecond(steps, 1)],
    [strings.tokensWritten, perSecond(written, 1)],
    [strings.tokensRead, perSecond(read, 0)],
    [strings.deviceBusy, `${Math.round(busy * 100)} %`],
    [strings.preemptions, String(view.preemptions)],
    ...(view.dropped ? [[strings.notTold, String(view.dropped)] as const] : []),
  ] as const;
  return (
    <dl class="inside-numbers">
      {numbers.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
    </dl>
  );
}

function Pause() {
  const { inside } = usePage();
  const isPaused = inside.frozen.value !== null;
  return (
    <button id="inside-pause" type="button" class="quiet" aria-pressed={isPaused}
      onClick={() => { if (isPaused) inside.resume(); else inside.pause(); }}>
      {isPaused ? strings.goOnWatching : strings.pause}
    </button>
  );
}

function Scrub() {
  const { inside } = usePage();
  if (!inside.frozen.value) return null;
  return (
    <label class="inside-scrub">
      <span>{strings.scrub(inside.back.value / 1000)}</span>
      <input type="range" min={-KEPT_MS} max={0} step={SCRUB_MS} value={-inside.back.value}
        onInput={(event) => { inside.scrub(-Number(event.currentTarget.value)); }} />
    </label>
  );
}

// A drawing is made anew with each event, and with the size of the window; how much it has stands in its data.
function Drawing(props: { id: string; title: string; label: string; draw: (canvas: HTMLCanvasElement) => number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [, setSize] = useState(0);
  useLayoutEffect(() => {
    if (canvas.current) canvas.current.dataset["drawn"] = String(props.draw(canvas.current));
  });
  useEffect(() => {
    const observer = new ResizeObserver(() => { setSize((count) => count + 1); });
    if (canvas.current) observer.observe(canvas.current);
    return () => { observer.disconnect(); };
  }, []);
  return (
    <figure class="drawing">
      <figcaption>{props.title}</figcaption>
      <canvas id={props.id} ref={canvas} role="img" aria-label={props.label} />
    </figure>
  );
}

function Blocks({ view, group }: { view: View; group: BlockGroup }) {
  const title = strings.blocks(group.window, group.used, group.blocks, group.planned);
  return <Drawing id={`inside-blocks-${group.window}`} title={title} label={title} draw={(canvas) => drawBlocks(canvas, view, group)} />;
}

function Heaps({ view }: { view: View }) {
  if (!view.heaps.length) return null;
  return (
    <ul class="inside-heaps" aria-label={strings.memory}>
      {view.heaps.map(({ heap, planned, allocated }) => (
        <li key={heap}>
          <span>{strings.heap(heap, allocated, planned)}</span>
          <meter min={0} max={Math.max(planned, allocated, 1)} value={allocated} aria-label={heap} />
        </li>
      ))}
    </ul>
  );
}

function EightAtOnce() {
  const { eight, session } = usePage();
  const parts = eight.parts.value;
  return (
    <section class="eight" aria-labelledby="eight-title">
      <div class="inside-head">
        <h3 id="eight-title">{strings.eightTitle}</h3>
        <button id="ask-eight" type="button" class="quiet" disabled={eight.isRunning || session.link.value !== "open"}
          onClick={() => { eight.ask(strings.eightQuestions); }}>
          {strings.askEight}
        </button>
      </div>
      {parts.length > 0 && (
        <ol class="eight-parts">
          {parts.map(({ question, text, state }, index) => (
            <li key={index} class={state} {...(state !== "done" && state !== "failed" && { "aria-busy": true })}>
              <strong>{question}</strong>
              <p dir="auto">{text || (state === "failed" ? strings.broken : "…")}</p>
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}

function Table({ view, frame }: { view: View; frame: Frame }) {
  const [isOpen, setOpen] = useState(false);
  const steps = view.steps.filter(({ ended }) => ended <= frame.to).slice(-TABLE_ROWS).reverse();
  return (
    <details class="inside-table" onToggle={(event) => { setOpen(event.currentTarget.open); }}>
      <summary>{strings.asTable}</summary>
      {isOpen && (
        <div class="table" tabIndex={0} role="region" aria-label={strings.asTable}>
          <table>
            <thead><tr>{strings.tableHead.map((name) => <th key={name} scope="col">{name}</th>)}</tr></thead>
            <tbody>
              {steps.map((step) => {
                const { read, written } = tokensOf(step);
                const busy = step.model.reduce((sum, [, length]) => sum + length, 0);
                return (
                  <tr key={step.number}>
                    <td>{step.number}</td>
                    <td>{written}</td>
                    <td>{read}</td>
                    <td>{decimal(step.ended - step.begun, 1)}</td>
                    <td>{step.model.length ? decimal(busy, 1) : "–"}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
    </details>
  );
}

function save(view: View): void {
  const url = URL.createObjectURL(new Blob([traceOf(view, strings.lanes)], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = "steps.json";
  link.click();
  setTimeout(() => { URL.revokeObjectURL(url); }, 1000);
}
