// The drawings of the inside view, on canvases of the size that they have in the page.

import type { BlockGroup, Span, View } from "./feed";

const OTHERS = 6; // colours of requests that are not one's own

export interface Frame {
  readonly from: number; // ms
  readonly to: number;
}

interface Brush {
  readonly context: CanvasRenderingContext2D;
  readonly width: number;
  readonly height: number;
  colour(name: string): string;
}

function brushOf(canvas: HTMLCanvasElement): Brush | null {
  const context = canvas.getContext("2d");
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!context || !width || !height) return null;
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const style = getComputedStyle(canvas);
  return { context, width, height, colour: (name) => style.getPropertyValue(`--${name}`).trim() };
}

function colourOf(view: View, sequence: number, brush: Brush): string {
  return brush.colour(view.own.has(sequence) ? "accent" : `request-${sequence % OTHERS}`);
}

// Each step a column: its decodes as dots, one above the other, and its parts of prompts as bars, long as they have tokens.
export function drawSteps(canvas: HTMLCanvasElement, view: View, { from, to }: Frame): number {
  const brush = brushOf(canvas);
  if (!brush) return 0;
  const { context, width, height } = brush;
  const steps = view.steps.filter(({ ended, begun }) => ended > from && begun < to);
  const x = (time: number): number => ((time - from) / (to - from)) * width;
  for (const step of steps) {
    const left = x(step.begun);
    const column = Math.max(1.5, x(step.ended) - left - 0.5);
    const dot = Math.max(1.5, Math.min(5, column, height / (step.decodes.length * 1.4 + 1)));
    let bottom = height - 1;
    for (const sequence of step.decodes) {
      context.fillStyle = colourOf(view, sequence, brush);
      context.beginPath();
      context.arc(left + column / 2, bottom - dot / 2, dot / 2, 0, 2 * Math.PI);
      context.fill();
      bottom -= dot + 0.7;
    }
    for (const [sequence, tokens] of step.prompts) {
      const length = Math.min(Math.max(3, Math.log2(tokens + 1) * 6), Math.max(0, bottom));
      context.fillStyle = colourOf(view, sequence, brush);
      context.fillRect(left, bottom - length, column, length);
      bottom -= length + 1;
    }
  }
  return steps.length;
}

// When each device worked: what lies between is a bubble.
export function drawLanes(canvas: HTMLCanvasElement, view: View, { from, to }: Frame): number {
  const brush = brushOf(canvas);
  if (!brush) return 0;
  const { context, width, height } = brush;
  const lanes = lanesOf(view);
  const room = height / lanes.length;
  let drawn = 0;
  lanes.forEach((name, index) => {
    context.fillStyle = brush.colour("line");
    context.fillRect(0, index * room + room / 2 - 0.5, width, 1);
    context.fillStyle = brush.colour(`lane-${name}`);
    for (const [start, length] of spansOf(view, name)) {
      if (start + length < from || start > to) continue;
      const left = Math.max(0, ((start - from) / (to - from)) * width);
      const right = Math.min(width, ((start + length - from) / (to - from)) * width);
      context.fillRect(left, index * room + 2, Math.max(0.8, right - left), room - 4);
      drawn += 1;
    }
  });
  return drawn;
}

export type Lane = "host" | "model" | "attention" | "upload" | "wire";

// From the top: those that there are.
export function lanesOf(view: View): Lane[] {
  const attends = view.steps.some(({ attention }) => attention.length);
  return ["host", "model", ...(attends ? (["attention"] as const) : []), ...(view.upload.length ? (["upload"] as const) : []), "wire"];
}

function spansOf(view: View, lane: Lane): readonly Span[] {
  if (lane === "upload" || lane === "wire") return view[lane];
  return view.steps.flatMap((step) => (lane === "host" ? [step.host] : step[lane]));
}

// The blocks of a group, in the order of their numbers: free, not there yet, or whose.
export function drawBlocks(canvas: HTMLCanvasElement, view: View, group: BlockGroup): number {
  const brush = brushOf(canvas);
  if (!brush || !group.planned) return 0;
  const { context, width, height } = brush;
  // As many cells as there are blocks, where these can be seen; else each stands for several.
  const size = Math.max(3, Math.floor(Math.sqrt((width * height) / group.planned)));
  const columns = Math.max(1, Math.floor(width / size));
  const cells = Math.min(group.planned, columns * Math.max(1, Math.floor(height / size)));
  const blocksOfCell = group.planned / cells;
  const cellOf = (block: number): number => Math.min(cells - 1, Math.floor(block / blocksOfCell));
  const fill = (cell: number): void => {
    context.fillRect((cell % columns) * size, Math.floor(cell / columns) * size, size - 1, size - 1);
  };
  for (let cell = 0; cell < cells; cell++) {
    context.fillStyle = brush.colour(cell * blocksOfCell < group.blocks ? "block-free" : "block-to-come");
    fill(cell);
  }
  let drawn = 0;
  for (const [sequence, runs] of Object.entries(group.owners)) {
    context.fillStyle = colourOf(view, Number(sequence), brush);
    for (let index = 0; index + 1 < runs.length; index += 2) {
      const first = runs[index] ?? 0;
      const count = runs[index + 1] ?? 0;
      drawn += count;
      for (let cell = cellOf(first); cell <= cellOf(first + count - 1); cell++) fill(cell);
    }
  }
  return drawn;
}

