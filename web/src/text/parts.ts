// Markdown as a tree of parts, of markdown-it's tokens. Blocks are parsed at once, what stands in a line when it is shown.

import MarkdownIt from "markdown-it";
import type { Token } from "markdown-it";
import { formulas } from "./tex";

const parser = new MarkdownIt({ html: false }).use(formulas);
parser.core.ruler.enableOnly(["normalize", "block"]);
parser.disable("image"); // an image would be asked for elsewhere, and its address would tell of the conversation

// A browser goes as deep as a tree of nodes is; markdown-it leaves blocks out at a depth of 100, and stress at none.
const MAX_BLOCK_DEPTH = 60;
const MAX_INLINE_DEPTH = 20;
const MAX_STRETCH_CHARS = 4096;
const LOOKAHEAD_CHARS = 1024; // what is stressed, or a link's text, may be so long behind a stretch's end
const MAX_TRIES = 8;

// What is deeper is text with its marks.
const tokenize = parser.block.tokenize.bind(parser.block);
parser.block.tokenize = (state, startLine, endLine) => {
  if (state.level < MAX_BLOCK_DEPTH) {
    tokenize(state, startLine, endLine);
    return;
  }
  state.push("paragraph_open", "p", 1);
  const token = state.push("inline", "", 0);
  token.content = state.getLines(startLine, endLine, state.blkIndent, false).trim();
  token.children = [];
  state.push("paragraph_close", "p", -1);
  state.line = endLine;
};

export type Environment = NonNullable<Parameters<typeof parser.parse>[1]>;
export type References = NonNullable<Environment["references"]>;

export interface Part {
  readonly token: Token; // that opens it, or that it is
  readonly children: Part[]; // empty where `line` is not null
  line: string | null; // Markdown that is not parsed yet
  content: string;
}

export function blocksOf(text: string, environment: Environment): Part[] {
  return treeOf(parser.parse(text, environment), Infinity);
}

// Splits what stands in a line into stretches, each of which is parsed by itself: where they end is told by what is
// before that and a little behind it, so that it stays when more text comes. Returns the stretches; `known` are the
// first ones, from a time when there was less text.
export function stretchesOf(line: string, known: readonly string[]): string[] {
  const stretches: string[] = [];
  let from = 0;
  while (line.length - from > MAX_STRETCH_CHARS + LOOKAHEAD_CHARS) {
    const before = known.length > stretches.length + 1 ? known[stretches.length] : undefined;
    const isKnown = before !== undefined && line.startsWith(before, from);
    const stretch = isKnown ? before : line.slice(from, from + cut(line.slice(from, from + MAX_STRETCH_CHARS + LOOKAHEAD_CHARS)));
    stretches.push(stretch);
    from += stretch.length;
  }
  return [...stretches, line.slice(from)];
}

export function inlineOf(text: string, environment: Environment): Part[] {
  const tokens: Token[] = [];
  parser.inline.parse(text, parser, environment, tokens);
  return treeOf(tokens, MAX_INLINE_DEPTH);
}

// Where a stretch ends best: behind a space or a sentence, where nothing that was opened before it is closed behind it.
function cut(near: string): number {
  const whole = shapeOf(near);
  let first = 0;
  let at = MAX_STRETCH_CHARS;
  for (let tries = 0; tries < MAX_TRIES; tries++) {
    at = lastBreak(near, at - 1);
    if (at < MAX_STRETCH_CHARS / 2) break;
    first ||= at;
    if (shapeOf(near.slice(0, at)) + shapeOf(near.slice(at)) === whole) return at;
  }
  if (first) return first;
  return /[\uD800-\uDBFF]/.test(near.charAt(MAX_STRETCH_CHARS - 1)) ? MAX_STRETCH_CHARS - 1 : MAX_STRETCH_CHARS;
}

// Behind the last space up to a place that another character follows.
function lastBreak(text: string, end: number): number {
  for (let at = end; at > 0; at--) {
    if (/[\s。、，！？；：]/.test(text.charAt(at - 1)) && /\S/.test(text.charAt(at))) return at;
  }
  return 0;
}

function shapeOf(text: string): string {
  const tokens: Token[] = [];
  parser.inline.parse(text, parser, {}, tokens);
  return tokens.map(({ type, content }) => (type.startsWith("text") ? content : type === "softbreak" ? "\n" : `\0${type}\0${content}`)).join("");
}

// What is deeper than that stands beside each other.
function treeOf(tokens: Token[], maxDepth: number): Part[] {
  const root: Part[] = [];
  const open: { part: Part | null; children: Part[] }[] = [{ part: null, children: root }];
  for (const token of tokens) {
    const { part: parent, children } = open.at(-1) ?? { part: null, children: root };
    if (token.nesting === -1) {
      open.pop();
    } else if (token.nesting === 1 && open.length > maxDepth) {
      open.push({ part: parent, children });
    } else if (token.type === "inline" && parent) {
      parent.line = token.content;
    } else {
      const isText = token.type.startsWith("text") || token.type === "softbreak";
      const content = token.type === "softbreak" ? "\n" : token.content;
      const before = children.at(-1);
      if (isText && !content) continue;
      if (isText && before && isTextPart(before)) {
        before.content += content;
        continue;
      }
      const part: Part = { token, children: [], line: null, content };
      children.push(part);
      if (token.nesting === 1) open.push({ part, children: part.children });
    }
  }
  return root;
}

export function isTextPart({ token }: Part): boolean {
  return token.type.startsWith("text") || token.type === "softbreak";
}
