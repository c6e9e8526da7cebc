// Markdown as DOM nodes: markdown-it's tokens, each of which becomes an element or a text node. Text never becomes markup.

import MarkdownIt from "markdown-it";
import type { Token } from "markdown-it";
import { strings } from "../strings";
import { loadFormula, loadHighlight } from "./lazy";
import { formulas } from "./tex";

const MAX_HIGHLIGHTED_CHARS = 50_000;

const parser = new MarkdownIt({ html: false, linkify: false }).use(formulas);
parser.disable("image"); // an image would be asked for elsewhere, and its address would tell of the conversation
type References = NonNullable<Parameters<typeof parser.parse>[1]["references"]>;

const LINKED = /^(?:https?:|mailto:)/i;
const TAGS = new Set(
  ["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "br", "em", "strong", "s", "table"].concat(
    ["thead", "tbody", "tr", "th", "td"],
  ),
);

// Shows a text that grows. A block that another one follows is finished: it is rendered once, and its nodes stay, with
// what the reader has selected in them. Only what comes behind is parsed and rendered again.
export class MarkdownView {
  private text = "";
  private finishedEnd = 0; // in `text`, where what is not finished begins
  private numFinished = 0; // children of `root`
  private references: References = {}; // what finished blocks define of links

  constructor(readonly root: HTMLElement) {}

  show(text: string): void {
    if (text === this.text) return;
    if (!text.startsWith(this.text)) this.clear();
    this.text = text;
    const rest = text.slice(this.finishedEnd);
    const blocks = topLevel(parser.parse(rest, { references: { ...this.references } }));
    const numDone = finishedBlocks(blocks, rest);
    if (numDone === 0 && blocks.length === 1 && this.appendToCode(blocks[0])) return;
    while (this.root.childNodes.length > this.numFinished) this.root.lastChild?.remove();
    for (const block of blocks) this.root.append(renderBlock(block));
    this.decorate(this.numFinished, this.numFinished + numDone);
    this.numFinished += numDone;
    const next = blocks[numDone];
    if (next && numDone) this.finish(rest.slice(0, lineOffset(rest, startLine(next))));
  }

  // No more text comes: what is there is finished.
  end(): void {
    this.decorate(this.numFinished, this.root.childNodes.length);
    this.numFinished = this.root.childNodes.length;
    this.finishedEnd = this.text.length;
  }

  // What is finished gets what takes a while: colours for programs, and formulas.
  private decorate(from: number, to: number): void {
    for (const node of Array.from(this.root.childNodes).slice(from, to)) {
      if (!(node instanceof HTMLElement)) continue;
      for (const found of within(node, ".code")) void colour(found);
      for (const found of within(node, ".formula")) void typeset(found);
    }
  }

  private finish(text: string): void {
    this.finishedEnd += text.length;
    // Definitions of what still grows are not kept: the first one of a name counts, and it may be half of an address.
    if (text.includes("]:")) parser.parse(text, { references: this.references });
  }

  // A long program is one block: its text grows in place.
  private appendToCode(block: Token[] | undefined): boolean {
    const shown = this.root.childNodes.length === this.numFinished + 1 ? this.root.lastChild : null;
    const token = block?.[0];
    if (!(shown instanceof HTMLElement) || !shown.classList.contains("code") || token?.type !== "fence") return false;
    const text = shown.querySelector("code")?.firstChild;
    if (!(text instanceof Text) || shown.dataset["language"] !== languageOf(token)) return false;
    const content = codeOf(token);
    if (!content.startsWith(text.data)) return false;
    text.appendData(content.slice(text.data.length));
    return true;
  }

  private clear(): void {
    this.root.replaceChildren();
    this.finishedEnd = this.numFinished = 0;
    this.references = {};
  }
}

// Splits tokens where the nesting is back at the top.
function topLevel(tokens: Token[]): Token[][] {
  const blocks: Token[][] = [];
  let block: Token[] = [];
  let depth = 0;
  for (const token of tokens) {
    block.push(token);
    depth += token.nesting;
    if (depth === 0) {
      blocks.push(block);
      block = [];
    }
  }
  return blocks;
}

function startLine(block: Token[]): number {
  return block[0]?.map?.[0] ?? 0;
}

// How many blocks nothing that comes can change: those before one whose first line is complete. A line that still grows
// may turn out to go on with the block before it.
function finishedBlocks(blocks: Token[][], text: string): number {
  for (let index = blocks.length - 1; index > 0; index--) {
    const block = blocks[index];
    if (block && lineOffset(text, startLine(block) + 1) > 0) return index;
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

function renderBlock(tokens: Token[]): Node {
  const fragment = document.createDocumentFragment();
  renderInto(fragment, tokens);
  const node = fragment.firstChild;
  if (!node) return document.createTextNode("");
  if (node instanceof HTMLElement) node.dir = "auto";
  return node;
}

function renderInto(root: Node, tokens: Token[]): void {
  const open: Node[] = [root];
  for (const token of tokens) {
    const parent = open.at(-1) ?? root;
    if (token.nesting === -1) {
      open.pop();
    } else if (token.hidden) {
      if (token.nesting === 1) open.push(parent); // a tight list's paragraph has no element
    } else if (token.nesting === 1) {
      const node = opening(token);
      parent.appendChild(node.outer);
      open.push(node.inner);
    } else {
      renderLeaf(parent, token);
    }
  }
}

function opening(token: Token): { outer: Node; inner: Node } {
  if (token.type === "link_open") {
    const link = linkTo(String(token.attrGet("href") ?? ""));
    return { outer: link, inner: link };
  }
  const element = document.createElement(TAGS.has(token.tag) ? token.tag : "span");
  if (element instanceof HTMLOListElement) element.start = Number(token.attrGet("start") ?? 1);
  const align = /text-align:(left|center|right)/.exec(String(token.attrGet("style") ?? ""))?.[1];
  if (align) element.classList.add(`align-${align}`);
  if (token.tag !== "table") return { outer: element, inner: element };
  const scroller = document.createElement("div"); // a wide table scrolls, also by keyboard
  scroller.className = "table";
  scroller.tabIndex = 0;
  scroller.setAttribute("role", "group");
  scroller.setAttribute("aria-label", strings.table);
  scroller.append(element);
  return { outer: scroller, inner: element };
}

function renderLeaf(parent: Node, token: Token): void {
  switch (token.type) {
    case "inline":
      renderInto(parent, token.children ?? []);
      break;
    case "softbreak":
      parent.appendChild(document.createTextNode("\n"));
      break;
    case "hardbreak":
      parent.appendChild(document.createElement("br"));
      break;
    case "hr":
      parent.appendChild(document.createElement("hr"));
      break;
    case "code_inline":
      parent.appendChild(withText("code", token.content));
      break;
    case "formula":
      parent.appendChild(formulaOf(token));
      break;
    case "fence":
    case "code_block":
      parent.appendChild(codeBlock(codeOf(token), languageOf(token)));
      break;
    default:
      parent.appendChild(document.createTextNode(token.content));
  }
}

function within(node: HTMLElement, selector: string): HTMLElement[] {
  return [...(node.matches(selector) ? [node] : []), ...node.querySelectorAll<HTMLElement>(selector)];
}

async function colour(block: HTMLElement): Promise<void> {
  const code = block.querySelector("code");
  const text = code?.textContent ?? "";
  const language = block.dataset["language"] ?? "";
  if (!code || !language || text.length > MAX_HIGHLIGHTED_CHARS) return;
  const nodes = (await loadHighlight())?.highlighted(text, language.toLowerCase());
  if (nodes && code.textContent === text) code.replaceChildren(...nodes);
}

// Shows its source until it is typeset, and where it can't be.
function formulaOf(token: Token): HTMLElement {
  const element = withText(token.block ? "div" : "span", token.content);
  element.className = token.block ? "formula display" : "formula";
  return element;
}

async function typeset(element: HTMLElement): Promise<void> {
  const formula = await loadFormula();
  const isShown = formula?.showFormula(element, element.textContent, element.classList.contains("display"));
  if (!isShown) element.classList.add("source");
}

function linkTo(href: string): HTMLElement {
  if (!LINKED.test(href)) return document.createElement("span");
  const link = document.createElement("a");
  link.href = href;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return link;
}

function codeOf(token: Token): string {
  return token.content.replace(/\n$/, "");
}

function languageOf(token: Token): string {
  return /^[\w+#.-]+/.exec(token.info.trim())?.[0] ?? "";
}

function codeBlock(content: string, language: string): HTMLElement {
  const block = document.createElement("div");
  block.className = "code";
  block.dataset["language"] = language;
  const head = document.createElement("div");
  head.className = "code-head";
  const copy = withText("button", strings.copy) as HTMLButtonElement;
  copy.type = "button";
  copy.className = "copy";
  copy.setAttribute("aria-label", strings.copyCode);
  copy.addEventListener("click", () => void copyFrom(block, copy));
  head.append(withText("span", language), copy);
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // wide code scrolls, also by keyboard
  pre.dir = "ltr";
  const code = document.createElement("code");
  code.append(document.createTextNode(content));
  pre.append(code);
  block.append(head, pre);
  return block;
}

async function copyFrom(block: HTMLElement, button: HTMLButtonElement): Promise<void> {
  const isCopied = await copyText(block.querySelector("code")?.textContent ?? "");
  button.textContent = isCopied ? strings.copied : strings.copyFailed;
  setTimeout(() => (button.textContent = strings.copy), 1500);
}

// Returns whether the text is on the clipboard; a page that is not from this machine may have none without https.
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

function withText(name: string, text: string): HTMLElement {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}
