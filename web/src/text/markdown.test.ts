// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { MarkdownView } from "./markdown";

function shown(...texts: string[]): HTMLElement {
  const view = new MarkdownView(document.createElement("div"));
  for (const text of texts) view.show(text);
  return view.root;
}

// As it comes: each beginning of the text is shown in turn.
function streamed(text: string): HTMLElement {
  return shown(...Array.from(text, (_, index) => text.slice(0, index + 1)));
}

const TEXT = [
  "# Head\n\nA paragraph with *stress*, **weight**, ~~none~~ and `code`,\nin two lines.\n***and** a* third.\n",
  "1. one\n2. two\n\n   more of two\n3. three\n   - nested\n\n> quoted\nlazily\n\n---\n",
  "| a | b |\n|:--|--:|\n| 1 | 2 |\n\n```python\nprint(1)\n\n\nprint(2)\n```\n\n    indented\n",
  "[the link]: https://example.org/path\n\nSee [the link] and [this](mailto:a@b.c).\nTitle\n===\nEnd",
].join("\n");

test("a text that came character by character looks like one that came at once", () => {
  expect(streamed(TEXT).innerHTML).toBe(shown(TEXT).innerHTML);
});

test("tables, lists and headings are elements", () => {
  const root = shown(TEXT);
  const found = ["h1", "h1", "ol > li", "ul > li", "blockquote", "table th.align-left", "td.align-right", "em", "strong", "s"];
  expect(found.filter((selector) => !root.querySelector(selector))).toEqual([]);
  expect(root.querySelectorAll("ol > li").length).toBe(3);
});

test("a finished block keeps its nodes while the text grows", () => {
  const view = new MarkdownView(document.createElement("div"));
  view.show("first\n\nsecond");
  view.show("first\n\nsecond\n");
  const first = view.root.firstChild;
  view.show("first\n\nsecond\n\n- third\n- fourth\n\nfifth");
  expect(view.root.firstChild).toBe(first);
  expect([...view.root.children].map(({ tagName }) => tagName)).toEqual(["P", "P", "UL", "P"]);
});

test("a program grows in its text node", () => {
  const view = new MarkdownView(document.createElement("div"));
  view.show("```js\none\n");
  const text = view.root.querySelector("code")?.firstChild;
  view.show("```js\none\ntwo\n");
  expect(view.root.querySelector("code")?.firstChild).toBe(text);
  expect(text?.textContent).toBe("one\ntwo");
});

test("another text is shown from its start", () => {
  expect(shown("first\n\nsecond\n\nthird", "other").innerHTML).toBe(shown("other").innerHTML);
});

test.each([
  "<img src=x onerror=alert(1)>",
  "<script>alert(1)</script>",
  "[x](javascript:alert(1))",
  "[x](data:text/html,<script>alert(1)</script>)",
  "[x](vbscript:x) [y](file:///etc/passwd) [z](//example.org) [r](/v1/models/unload)",
])("hostile text stays text: %s", (text) => {
  const root = shown(text);
  expect(root.querySelectorAll("img, script, iframe, [href], [src], [onerror]").length).toBe(0);
});

test("an image is a link, so that nothing is asked for before somebody wants it", () => {
  const root = shown("![x](https://example.org/a.png)");
  expect([root.querySelectorAll("img").length, root.textContent]).toEqual([0, "!x"]);
});

test("links open elsewhere and tell nothing", () => {
  const link = shown("[x](https://example.org)").querySelector("a");
  expect([link?.rel, link?.target, link?.getAttribute("href")]).toEqual([
    "noopener noreferrer",
    "_blank",
    "https://example.org",
  ]);
});

test("a definition that still grows is not kept", () => {
  const root = streamed("[a]: https://example.org/long\n\n[a]");
  expect(root.querySelector("a")?.getAttribute("href")).toBe("https://example.org/long");
});

test("fifty thousand spaces and deep nesting end", () => {
  expect(shown(" ".repeat(50_000)).textContent).toBe("");
  expect(shown(`${">".repeat(5000)} deep\n\nend`).textContent).toContain("end");
});
