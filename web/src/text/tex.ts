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
  const found = code === DOLLAR ? dollars(src, pos) : code === BACKSLASH ? brackets(src, pos) : null;
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
function dollars(src: string, pos: number): Found | null {
  const isBlock = src[pos + 1] === "$";
  const mark = isBlock ? "$$" : "$";
  const start = pos + mark.length;
  if (!isBlock && /^\s/.test(src.slice(start, start + 1))) return null;
  const near = src.slice(0, start + MAX_INLINE_CHARS);
  for (let end = near.indexOf(mark, start); end !== -1; end = near.indexOf(mark, end + 1)) {
    if (src[end - 1] === "\\") continue;
    if (isBlock) return { start, end, after: end + 2, isBlock };
    if (end === start || /\s/.test(src[end - 1] ?? "") || /[\d$]/.test(src[end + 1] ?? "")) return null;
    return { start, end, after: end + 1, isBlock };
  }
  return null;
}

function brackets(src: string, pos: number): Found | null {
  const open = src[pos + 1];
  if (open !== "(" && open !== "[") return null;
  const end = src.slice(0, pos + MAX_INLINE_CHARS).indexOf(open === "(" ? "\\)" : "\\]", pos + 2);
  return end === -1 ? null : { start: pos + 2, end, after: end + 2, isBlock: open === "[" };
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
    lines.push(line(state, next));
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
