// Programs with their words in colours: highlight.js's tokens as elements. A file of its own, loaded when there is code.

import highlighter from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import dockerfile from "highlight.js/lib/languages/dockerfile";
import glsl from "highlight.js/lib/languages/glsl";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import kotlin from "highlight.js/lib/languages/kotlin";
import lua from "highlight.js/lib/languages/lua";
import makefile from "highlight.js/lib/languages/makefile";
import php from "highlight.js/lib/languages/php";
import python from "highlight.js/lib/languages/python";
import r from "highlight.js/lib/languages/r";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import swift from "highlight.js/lib/languages/swift";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

const LANGUAGES = {
  bash, c, cpp, csharp, css, diff, dockerfile, glsl, go, ini, java, javascript, json, kotlin, lua, makefile, php, python, r,
  ruby, rust, sql, swift, typescript, xml, yaml,
};

const MAX_CHARS = 50_000;
const MAX_CHUNK_CHARS = 5000;
const MAX_DEPTH = 30;
const LONG_LINE = /[^\n]{2000}/; // nobody reads such a one by its colours

// A part of the tree that highlight.js makes; the whole has no scope.
interface Part {
  scope?: string;
  children: (Part | string)[];
}

for (const [name, language] of Object.entries(LANGUAGES)) highlighter.registerLanguage(name, language);

// Returns the code's nodes, whose text is the code; null for a language that is not known here, and for what would take
// too long. Some languages' time grows with the square of the text, so that it is taken in chunks, `pause` between them.
export async function highlighted(code: string, language: string, pause: () => Promise<void>): Promise<Node[] | null> {
  if (!highlighter.getLanguage(language) || code.length > MAX_CHARS || LONG_LINE.test(code)) return null;
  const nodes: Node[] = [];
  for (const chunk of chunksOf(code)) {
    await pause();
    nodes.push(...nodesOf(chunk, language));
  }
  return nodes;
}

// Chunks end where a part of a program is likely to end: before a line at the margin that an empty one precedes.
export function chunksOf(code: string): string[] {
  const chunks: string[] = [];
  let from = 0;
  while (code.length - from > MAX_CHUNK_CHARS) {
    const near = code.slice(from, from + MAX_CHUNK_CHARS);
    const margins = [...near.matchAll(/\n\n(?=\S)/g)].map(({ index }) => index + 2);
    const margin = margins.findLast((at) => at > MAX_CHUNK_CHARS / 2);
    const end = margin ?? near.lastIndexOf("\n") + 1;
    chunks.push(near.slice(0, end));
    from += end;
  }
  return [...chunks, code.slice(from)];
}

function nodesOf(code: string, language: string): Node[] {
  try {
    const { _emitter } = highlighter.highlight(code, { language, ignoreIllegals: true });
    return (_emitter as unknown as { rootNode: Part }).rootNode.children.map((part) => node(part, 1));
  } catch {
    return [document.createTextNode(code)]; // nested deeper than it can follow
  }
}

function node(part: Part | string, depth: number): Node {
  if (typeof part === "string") return document.createTextNode(part);
  if (depth > MAX_DEPTH) return document.createTextNode(textOf(part));
  const element = document.createElement("span");
  element.className = (part.scope ?? "").split(".").map((name) => `code-${name.replaceAll("_", "-")}`).join(" ");
  element.append(...part.children.map((child) => node(child, depth + 1)));
  return element;
}

function textOf(part: Part | string): string {
  return typeof part === "string" ? part : part.children.map(textOf).join("");
}
