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

test("the parts of a long list, table and paragraph keep their nodes, and what is selected in them", () => {
  for (const [begin, more, selector] of [
    ["- one\n- two **and**", " more\n- three\n\n  of it\n- four\n- five", "li:first-child"],
    ["4. one\n5. two", " more\n\n6. three\n7. four\n\nend", "li:first-child"],
    ["| a | b |\n|-|-|\n| 1 | 2 |\n| 3", " | 4 |\n| 5 | 6 |\n| 7 | 8 |\n", "tbody tr:first-child"],
    ["A *long* paragraph and", " **its** end, in\ntwo `lines` of [it](https://example.org)", "em"],
    ["> - one\n> - two", "\n> - three\n>\n> end", "li:first-child"],
    ["- one\n  ```js\n  a\n  ```\n- ", "two", "pre"],
  ] as const) {
    const view = new MarkdownView(document.createElement("div"));
    view.show(begin);
    const [block, part] = [view.root.firstChild, view.root.querySelector(selector)];
    const texts = view.root.textContent.length;
    for (let end = 1; end <= more.length; end++) view.show(begin + more.slice(0, end));
    expect(view.root.firstChild).toBe(block);
    expect(view.root.querySelector(selector)).toBe(part);
    expect(view.root.textContent.length).toBeGreaterThan(texts);
    expect(view.root.innerHTML).toBe(shown(begin + more).innerHTML);
  }
});

test("a text node grows at its end", () => {
  const view = new MarkdownView(document.createElement("div"));
  view.show("some words and *an");
  const text = view.root.querySelector("p")?.firstChild;
  view.show("some words and *an end*");
  expect(view.root.querySelector("p")?.firstChild).toBe(text);
  expect(text?.textContent).toBe("some words and ");
});

test("a list is loose once a line is empty between its items", () => {
  expect(shown("- a\n- b").querySelector(".tight")?.children.length).toBe(2);
  expect(streamed("- a\n- b\n\n- c").querySelector(".tight")).toBeNull();
});

test("an item of a list that goes on is none of a table", () => {
  const root = streamed("* x\n* y\n* a | b\n-|-\n* z");
  expect([root.querySelectorAll("li").length, root.querySelector("table")]).toEqual([4, null]);
});

test("a long paragraph is parsed in stretches that leave alone what belongs together", () => {
  const text = "some **words that are stressed**, a [link to it](https://example.org/a) and `code of it`, ".repeat(300);
  const root = shown(text);
  expect(root.querySelectorAll("strong").length).toBe(300);
  expect(root.querySelectorAll("a[href]").length).toBe(300);
  expect(root.querySelectorAll("code").length).toBe(300);
  expect(root.children.length).toBe(1);
  const view = new MarkdownView(document.createElement("div"));
  for (let end = 1000; end < text.length; end += 1000) view.show(text.slice(0, end));
  view.show(text);
  expect(view.root.innerHTML).toBe(root.innerHTML);
  expect(shown("字".repeat(20_000)).textContent.length).toBe(20_000);
});

test("lines may end as they do elsewhere", () => {
  expect(streamed("a\r\rb\r\n\r\nc\r").innerHTML).toBe(shown("a\n\nb\n\nc\n").innerHTML);
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

test("stress within stress is as deep as a browser goes", () => {
  const root = shown(`${"*a **b ".repeat(300)}core${" c** d*".repeat(300)}`);
  expect(root.textContent).toContain("core");
  expect(root.querySelector("em")).not.toBeNull();
  let depth = 0;
  for (let nodes: Element[] = [root]; nodes.length > 0; nodes = nodes.flatMap(({ children }) => [...children])) depth += 1;
  expect(depth).toBeLessThan(30);
});

test.each(["- ", "> ", "1. ", "- > "])("what lies too deep is shown with its marks: %s", (mark) => {
  for (const depth of [10, 34, 50, 100, 2000]) {
    expect(shown(`${mark.repeat(depth)}secret`).textContent).toContain("secret");
  }
});
