// @vitest-environment happy-dom
import { expect, test, vi } from "vitest";
import { MarkdownView } from "./markdown";
import { blocksOf, inlineOf, stretchesOf } from "./parts";
import { showFormula } from "./formula";
import { chunksOf, highlighted } from "./highlight";

// The test's browser calls itself one of the time before doctypes.
vi.hoisted(() => Object.defineProperty(document, "compatMode", { value: "CSS1Compat" }));

function found(text: string): (string | null)[] {
  const view = new MarkdownView(document.createElement("div"));
  view.show(text);
  return [...view.root.querySelectorAll(".formula")].map((node) => (node.matches(".display") ? "= " : "") + node.textContent);
}

test.each([
  ["The sum $a + b$ of both", ["a + b"]],
  ["Prices of $5 and $10", []],
  ["It costs $20,000 and $30,000", []],
  ["\\(x^2\\) and \\[y_1\\]", ["x^2", "= y_1"]],
  ["$$\nx = 1\ny = 2\n$$", ["= x = 1\ny = 2"]],
  ["Text\n$$x$$\nmore", ["= x"]],
  ["\\[\n\\frac{1}{2}\n\\]", ["= \\frac{1}{2}"]],
  ["> $$\n> x\n> $$", ["= x"]],
  ["- $$x$$", ["= x"]],
  ["`$a$` and\n\n    $$b$$", []],
  ["\\$a$ and $b\\$", []],
  ["$ a$ $b $ $$ $$", []],
  ["$$\nnever closed\n\nmore $$", []],
  ["$$ never closed\n$$x$$", ["= x"]],
  ["\\[ never closed\n\\[x\\]", ["= x"]],
  ["$a\\$ and b$", ["a\\$ and b"]],
])("%j has %j", (text, formulas) => {
  expect(found(text)).toEqual(formulas);
});

test("formulas become MathML, and what is none stays as it was", () => {
  const element = document.createElement("span");
  expect(showFormula(element, "\\frac{a}{b}", false)).toBe(true);
  expect(element.querySelector("mfrac")).not.toBeNull();
  const other = document.createElement("span");
  other.textContent = "\\frac{";
  expect(showFormula(other, "\\frac{", false)).toBe(false);
  expect(other.textContent).toBe("\\frac{");
});

test.each(["\\href{javascript:alert(1)}{x}", "\\includegraphics{https://example.org/x}", "\\def\\a{\\a\\a}\\a"])(
  "a formula that wants more than to be shown is none: %s",
  (source) => {
    const element = document.createElement("span");
    showFormula(element, source, true);
    expect(element.querySelector("a, img")).toBeNull();
  },
);

const now = (): Promise<void> => Promise.resolve();

async function coloured(code: string, language: string): Promise<HTMLElement> {
  const element = document.createElement("code");
  element.append(...((await highlighted(code, language, now)) ?? []));
  return element;
}

test("code in colours has the same text, and markup in it is text", async () => {
  const code = 'const a = "<img src=x onerror=alert(1)>"; // it\n';
  const element = await coloured(code, "javascript");
  expect(element.textContent).toBe(code);
  expect(element.querySelector("img")).toBeNull();
  expect(element.querySelector(".code-keyword")?.textContent).toBe("const");
  expect(element.querySelector(".code-string")).not.toBeNull();
});

test("other names of a language are known, and others are not", async () => {
  for (const name of ["js", "ts", "py", "sh", "html", "yml", "c++", "rs"]) expect(await highlighted("a", name, now)).not.toBeNull();
  expect(await highlighted("a", "klingon", now)).toBeNull();
});

test("a long program is coloured in chunks that end between its parts, with a pause before each", async () => {
  const code = "def f():\n    return 1\n\n    # more\n\n".repeat(400);
  const chunks = chunksOf(code);
  expect(chunks.join("")).toBe(code);
  expect(Math.max(...chunks.map(({ length }) => length))).toBeLessThanOrEqual(5000);
  expect(chunks.every((chunk) => chunk.startsWith("def"))).toBe(true);
  const pause = vi.fn(now);
  const nodes = (await highlighted(code, "python", pause)) ?? [];
  expect(nodes.map(({ textContent }) => textContent).join("")).toBe(code);
  expect(pause).toHaveBeenCalledTimes(chunks.length);
});

test("what would take too long to colour has no colours", async () => {
  expect(await highlighted("a = 1\n".repeat(10_000), "ini", now)).toBeNull();
  expect(await highlighted(`x = "${"a".repeat(2500)}"`, "python", now)).toBeNull();
});

test("code that is nested deeper than a browser goes is coloured as deep as it does", async () => {
  const code = "f'{".repeat(300) + "}'".repeat(300);
  const element = await coloured(code, "python");
  expect(element.textContent).toBe(code);
  let depth = 0;
  for (let nodes: Element[] = [element]; nodes.length > 0; nodes = nodes.flatMap(({ children }) => [...children])) depth += 1;
  expect(depth).toBeGreaterThan(10);
  expect(depth).toBeLessThan(40);
});

test.each([["x".repeat(5000)], [`\\begin{matrix}${"1&".repeat(500)}1\\end{matrix}`]])("a formula that is too large stays source", (source) => {
  const element = document.createElement("span");
  element.textContent = source;
  expect(showFormula(element, source, true)).toBe(false);
  expect(element.textContent).toBe(source);
});

test("what looks for the end of a formula that has none takes no time worth a name", () => {
  for (const unit of ["\\(", "$a ", "$$a ", "$\\$", "$$a\n", "\\[a\n"]) {
    const text = unit.repeat(100_000 / unit.length);
    for (const { line } of blocksOf(text, {})) {
      for (const stretch of stretchesOf(line ?? "", [])) expect(inlineOf(stretch, {})).not.toEqual([]);
    }
  }
});
