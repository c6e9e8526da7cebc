// Markdown that grows, as DOM nodes.

import { blocksOf } from "./parts";
import type { Part, References } from "./parts";
import { Piece } from "./pieces";

// What has to stand before the rest of a block of which some is finished, for it to be read as that: a table's first two
// lines, or an item of the list, which is not shown.
interface Head {
  readonly text: string;
  readonly isItem: boolean;
}

const NO_HEAD: Head = { text: "", isItem: false };

// Shows a text that grows. What is finished is rendered once, and parsed no more: blocks that another one follows, and of
// the last one the items of a list and the rows of a table that another one follows.
export class MarkdownView {
  private text = "";
  private finishedEnd = 0; // in `text`, where what is not finished begins
  private head: Head = NO_HEAD;
  private references: References = {}; // what is finished defines of links
  private shown: Piece;

  constructor(readonly root: HTMLElement) {
    this.shown = new Piece(null, root, root);
  }

  show(given: string): void {
    const text = given.includes("\r") ? given.replace(/\r\n?/g, "\n") : given;
    if (text === this.text) return;
    if (!text.startsWith(this.text)) this.clear();
    this.text = text;
    const rest = this.head.text + text.slice(this.finishedEnd);
    const environment = { references: { ...this.references } };
    const blocks = blocksOf(rest, environment);
    if (this.head.isItem) blocks[0]?.children.shift();
    this.shown.update(blocks, environment);
    this.shown.settle(false);
    const numDone = numFinished(blocks, rest);
    this.shown.finish(numDone);
    const block = blocks[numDone];
    if (!block) return;
    if (numDone) this.finish(rest, block);
    if (numDone === blocks.length - 1) this.finishWithin(rest, block);
  }

  // No more text comes: what is there is finished.
  end(): void {
    this.shown.settle(true);
  }

  private finishWithin(rest: string, block: Part): void {
    const { tag, type, markup } = block.token;
    const isList = type.endsWith("list_open");
    const parts = isList ? block.children : tag === "table" ? (block.children[1]?.children ?? []) : [];
    const numDone = numFinished(parts, rest);
    const next = parts[numDone];
    if (!next || !numDone) return;
    const piece = this.shown.children[0];
    (isList ? piece : piece?.children[1])?.finish(numDone);
    const start = startLine(block);
    const text = isList ? `   ${tag === "ol" ? 1 : ""}${markup} x\n` : rest.slice(lineOffset(rest, start), lineOffset(rest, start + 2));
    this.finish(rest, next);
    this.head = { text, isItem: isList };
  }

  // All that stands before a part is finished.
  private finish(rest: string, next: Part): void {
    const text = rest.slice(this.head.text.length, lineOffset(rest, startLine(next)));
    this.finishedEnd += text.length;
    this.head = NO_HEAD;
    // Definitions of what still grows are not kept: the first one of a name counts, and it may be half of an address.
    if (text.includes("]:")) blocksOf(text, { references: this.references });
  }

  private clear(): void {
    this.root.replaceChildren();
    this.shown = new Piece(null, this.root, this.root);
    this.finishedEnd = 0;
    this.head = NO_HEAD;
    this.references = {};
  }
}

function startLine({ token }: Part): number {
  return token.map?.[0] ?? 0;
}

// How many parts nothing that comes can change: those before one whose first line is complete. A line that still grows may
// turn out to go on with the part before it.
function numFinished(parts: Part[], text: string): number {
  for (let index = parts.length - 1; index > 0; index--) {
    const part = parts[index];
    if (part && lineOffset(text, startLine(part) + 1) > 0) return index;
  }
  return 0;
}

// Where a line begins; 0 if the text has no such line.
function lineOffset(text: string, line: number): number {
  let offset = 0;
  for (; line > 0; line--) {
    offset = text.indexOf("\n", offset) + 1;
    if (offset === 0) return 0;
  }
  return offset;
}
