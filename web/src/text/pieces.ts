// What is shown of Markdown's parts: an element or a text node of each, which stays as long as its part does. So what was
// rendered once is not rendered again when more text comes, and the reader's selection in it stays. Text never becomes
// markup.

import type { Token } from "markdown-it";
import { strings } from "../strings";
import { codeBlock, codeOf, languageOf } from "./code_block";
import { colour, typeset } from "./decoration";
import { changeText, makeScroller, withText } from "./elements";
import { inlineOf, isTextPart, stretchesOf } from "./parts";
import type { Environment, Part } from "./parts";

const LINKED = /^(?:https?:|mailto:)/i;
const TAGS = new Set(
  ["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "br", "em", "strong", "s", "table"].concat(
    ["thead", "tbody", "tr", "th", "td"],
  ),
);

const MAX_FORMULAS = 1000; // of a text; each takes its time again whenever the page is laid out

export class Piece {
  children: Piece[] = []; // those that more text may change
  private numSettled = 0; // of them
  private stretches: string[] = [];
  private stretchParts: Part[][] = [];

  constructor(
    private part: Part | null, // null = the root
    private readonly outer: Node,
    private readonly inner: Node,
    private readonly count = { formulas: 0 },
  ) {}

  // Shows parts in the place of those that were shown.
  update(parts: Part[], environment: Environment): void {
    const changed = parts.findIndex((part, index) => !this.children[index]?.takes(part, environment));
    const numKept = changed === -1 ? parts.length : changed;
    for (const gone of this.children.splice(numKept)) gone.outer.parentNode?.removeChild(gone.outer);
    this.numSettled = Math.min(this.numSettled, numKept);
    for (const part of parts.slice(numKept)) {
      const { outer, inner } = part.token.nesting === 1 ? opening(part.token) : leaf(part);
      const piece = new Piece(part, outer, inner, this.count);
      piece.fill(part, environment);
      // Not before that: with each node a browser looks for a letter that has a direction, from the first one on.
      if (!this.part && piece.outer instanceof HTMLElement) piece.outer.dir ||= "auto";
      this.children.push(piece);
      this.inner.appendChild(piece.outer);
    }
  }

  // The first children are finished: nothing changes them any more, and nothing is asked of them.
  finish(count: number): void {
    this.settleTo(count);
    this.children.splice(0, count);
    this.numSettled -= count;
  }

  // What another one follows gets what takes a while: colours for programs, and formulas. With `isOver` all does.
  settle(isOver: boolean): void {
    this.settleTo(this.children.length - (isOver ? 0 : 1));
    this.children.at(-1)?.settle(false);
  }

  private settleTo(count: number): void {
    for (const piece of this.children.slice(this.numSettled, count)) {
      piece.settle(true);
      piece.decorate();
    }
    this.numSettled = Math.max(this.numSettled, count);
  }

  private decorate(): void {
    if (!(this.outer instanceof HTMLElement)) return;
    const type = this.part?.token.type;
    if (type === "fence") void colour(this.outer);
    else if (type === "formula" && ++this.count.formulas <= MAX_FORMULAS) void typeset(this.outer);
  }

  // Whether what is shown can become this part's without being made anew; then it has.
  private takes(part: Part, environment: Environment): boolean {
    if (part === this.part) return true;
    if (!this.part || !isSameKind(this.part, part)) return false;
    if (part.token.nesting === 0 && part.content !== this.part.content) {
      const text = textOf(this.outer, part);
      if (!text) return false;
      changeText(text, part.token.block ? codeOf(part.token) : part.content);
    }
    this.fill(part, environment);
    return true;
  }

  private fill(part: Part, environment: Environment): void {
    this.part = part;
    if (part.line !== null) this.update(this.partsOfLine(part.line, environment), environment);
    else if (part.token.nesting === 1) this.update(part.children, environment);
    if (part.token.type.endsWith("list_open") && this.inner instanceof HTMLElement && part.children.some(isLoose)) {
      this.inner.classList.remove("tight");
    }
  }

  private partsOfLine(line: string, environment: Environment): Part[] {
    const stretches = stretchesOf(line, this.stretches);
    this.stretchParts = stretches.map((stretch, index) => {
      const known = stretch === this.stretches[index] ? this.stretchParts[index] : undefined;
      return known ?? inlineOf(stretch, environment);
    });
    this.stretches = stretches;
    return joined(this.stretchParts);
  }
}

// A text that goes on in the next stretch is one, as it was when there was no other stretch.
function joined(stretches: Part[][]): Part[] {
  const parts: Part[] = [];
  for (const more of stretches) {
    const [last, first] = [parts.at(-1), more[0]];
    const goesOn = last && first && isTextPart(last) && isTextPart(first);
    if (goesOn) parts[parts.length - 1] = { ...last, content: last.content + first.content };
    for (const part of goesOn ? more.slice(1) : more) parts.push(part);
  }
  return parts;
}

// Whether an item's paragraphs stand apart.
function isLoose(item: Part): boolean {
  return item.children.some(({ token }) => token.type === "paragraph_open" && !token.hidden);
}

function isSameKind(one: Part, other: Part): boolean {
  if (isTextPart(one)) return isTextPart(other);
  const { type, tag, info, block, attrs } = one.token;
  const token = other.token;
  if (type !== token.type || tag !== token.tag || info !== token.info || block !== token.block) return false;
  // A list that goes on begins at another number.
  return tag === "ol" || attrs?.join() === token.attrs?.join();
}

function opening(token: Token): { outer: Node; inner: Node } {
  if (token.type === "link_open") {
    const link = linkTo(String(token.attrGet("href") ?? ""));
    return { outer: link, inner: link };
  }
  const element = document.createElement(TAGS.has(token.tag) ? token.tag : "span");
  if (token.type.endsWith("list_open")) element.className = "tight";
  if (element instanceof HTMLOListElement) element.start = Number(token.attrGet("start") ?? 1);
  const align = /text-align:(left|center|right)/.exec(String(token.attrGet("style") ?? ""))?.[1];
  if (align) element.classList.add(`align-${align}`);
  if (token.tag !== "table") return { outer: element, inner: element };
  const scroller = document.createElement("div");
  scroller.className = "table";
  makeScroller(scroller, strings.table);
  scroller.append(element);
  return { outer: scroller, inner: element };
}

function leaf(part: Part): { outer: Node; inner: Node } {
  const node = leafNode(part);
  return { outer: node, inner: node };
}

function leafNode({ token, content }: Part): Node {
  switch (token.type) {
    case "hardbreak":
      return document.createElement("br");
    case "hr":
      return document.createElement("hr");
    case "code_inline":
      return withText("code", content);
    case "formula":
      return formulaOf(token);
    case "fence":
    case "code_block":
      return codeBlock(codeOf(token), languageOf(token));
    default:
      return document.createTextNode(content);
  }
}

// Shows its source until it is typeset, and where it can't be.
function formulaOf(token: Token): HTMLElement {
  const element = withText(token.block ? "div" : "span", token.content);
  element.className = token.block ? "formula display" : "formula";
  element.dir = "ltr"; // and it has no say in the direction of what is around it, for which a browser looks at each change
  if (token.block) makeScroller(element, strings.formula);
  return element;
}

function linkTo(href: string): HTMLElement {
  if (!LINKED.test(href)) return document.createElement("span");
  const link = document.createElement("a");
  link.href = href;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return link;
}

// The text node whose text is the part's; null where it has become something else.
function textOf(node: Node, { token }: Part): Text | null {
  if (node instanceof Text) return node;
  if (!(node instanceof HTMLElement) || token.type === "formula") return null;
  const code = node.querySelector("code") ?? node;
  return code.childNodes.length === 1 && code.firstChild instanceof Text ? code.firstChild : null;
}
