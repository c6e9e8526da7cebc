// Where formulas are in Markdown: $…$ and \(…\) in a line, $$…$$ and \[…\] by themselves.

import type MarkdownIt from "markdown-it";
import type { StateBlock, StateInline } from "markdown-it";

const DOLLAR = 0x24;
const BACKSLASH = 0x5c;

const MAX_INLINE_CHARS = 2000; // further than that nobody looks for the end of one

export function formulas(parser: InstanceType<typeof MarkdownIt>): void {
  parser.inline.ruler.before("escape", "formula", inline);
  parser.block.ruler.before("fence", "formula", block, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

function inline(state: StateInline, isSilent: boolean): boolean {
  const { src, pos } = state;
  const code = src.charCodeAt(pos);
  const found = code === DOLLAR ? dollars(state) : code === BACKSLASH ? brackets(state) : null;
  if (!found || !src.slice(found.start, found.end).trim()) return false;
  if (!isSilent) {
    const token = state.push("formula", "", 0);
    token.content = src.slice(found.start, found.end).trim();
    token.block = found.isBlock;
    token.markup = src.slice(pos, found.after);
  }
  state.pos = found.after;
  return true;
}

interface Found {
  start: number;
  end: number;
  after: number;
  isBlock: boolean;
}

// As Pandoc has it, so that prices are none: no space within the dollars, and no digit behind them.
function dollars(state: StateInline): Found | null {
  const { src, pos } = state;
  const isBlock = src[pos + 1] === "$";
  const start = pos + (isBlock ? 2 : 1);
  if (!isBlock && /^\s/.test(src.slice(start, start + 1))) return null;
  const end = markFrom(state, isBlock ? "$$" : "$", start);
  if (end === null || isBlock) return end === null ? null : { start, end, after: end + 2, isBlock };
  if (end === start || /\s/.test(src[end - 1] ?? "") || /[\d$]/.test(src[end + 1] ?? "")) return null;
  return { start, end, after: end + 1, isBlock };
}

function brackets(state: StateInline): Found | null {
  const { src, pos } = state;
  const open = src[pos + 1];
  if (open !== "(" && open !== "[") return null;
  const end = markFrom(state, open === "(" ? "\\)" : "\\]", pos + 2);
  return end === null ? null : { start: pos + 2, end, after: end + 2, isBlock: open === "[" };
}

const marks = new WeakMap<StateInline, Map<string, number[]>>(); // where they are, found once for each text

// Where the next mark is that no backslash precedes, from a place on and not far from it.
function markFrom(state: StateInline, mark: string, from: number): number | null {
  const known = marks.get(state) ?? new Map<string, number[]>();
  marks.set(state, known);
  const places = known.get(mark) ?? placesOf(state.src, mark);
  known.set(mark, places);
  let low = 0;
  for (let high = places.length; low < high; ) {
    const middle = (low + high) >> 1;
    if ((places[middle] ?? 0) < from) low = middle + 1;
    else high = middle;
  }
  const found = places[low];
  return found === undefined || found > from + MAX_INLINE_CHARS ? null : found;
}

function placesOf(text: string, mark: string): number[] {
  const places: number[] = [];
  for (let at = text.indexOf(mark); at !== -1; at = text.indexOf(mark, at + 1)) {
    if (text[at - 1] !== "\\") places.push(at);
  }
  return places;
}

function block(state: StateBlock, startLine: number, endLine: number, isSilent: boolean): boolean {
  const first = line(state, startLine);
  const mark = first.startsWith("$$") ? "$$" : first.startsWith("\\[") ? "\\[" : "";
  if (!mark || (state.sCount[startLine] ?? 0) - state.blkIndent >= 4) return false;
  const close = mark === "$$" ? "$$" : "\\]";
  const lines = [first.slice(2)];
  let next = startLine;
  while (!(lines.at(-1) ?? "").trimEnd().endsWith(close)) {
    next += 1;
    const isLeft = next >= endLine || state.isEmpty(next) || (state.sCount[next] ?? 0) < state.blkIndent;
    if (isLeft) return false; // it is not complete: text, for now
    const more = line(state, next);
    // Another one begins before this has ended. Whoever looks further looks at each line from every line before it.
    if (more.startsWith(mark) && (mark !== close || !more.trimEnd().endsWith(close))) return false;
    lines.push(more);
  }
  const content = lines.join("\n").trimEnd().slice(0, -2).trim();
  if (!content || content.includes(close)) return false;
  if (isSilent) return true;
  const token = state.push("formula", "", 0);
  token.block = true;
  token.content = content;
  token.markup = mark;
  token.map = [startLine, next + 1];
  state.line = next + 1;
  return true;
}

function line(state: StateBlock, number: number): string {
  return state.src.slice((state.bMarks[number] ?? 0) + (state.tShift[number] ?? 0), state.eMarks[number]);
}
