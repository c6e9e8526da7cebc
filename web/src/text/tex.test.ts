// @vitest-environment happy-dom
import { expect, test, vi } from "vitest";
import { MarkdownView } from "./markdown";
import { showFormula } from "./formula";
import { highlighted } from "./highlight";

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

test.each(["\\href{javascript:alert(1)}{x}", "\\includegraphics{https://example.org/x}", "\\def\\a{\\a\\a}\\a", "x".repeat(20_000)])(
  "a formula that wants more than to be shown is none: %s",
  (source) => {
    const element = document.createElement("span");
    showFormula(element, source, true);
    expect(element.querySelector("a, img")).toBeNull();
  },
);

test("code in colours has the same text, and markup in it is text", () => {
  const code = 'const a = "<img src=x onerror=alert(1)>"; // it\n';
  const nodes = highlighted(code, "javascript") ?? [];
  const element = document.createElement("code");
  element.append(...nodes);
  expect(element.textContent).toBe(code);
  expect(element.querySelector("img")).toBeNull();
  expect(element.querySelector(".code-keyword")?.textContent).toBe("const");
  expect(element.querySelector(".code-string")).not.toBeNull();
});

test("other names of a language are known, and others are not", () => {
  for (const name of ["js", "ts", "py", "sh", "html", "yml", "c++", "rs"]) expect(highlighted("a", name)).not.toBeNull();
  expect(highlighted("a", "klingon")).toBeNull();
});

test("what looks for the end of a formula that has none takes no time worth a name", () => {
  for (const text of ["\\(".repeat(50_000), "$a ".repeat(50_000), "$$a ".repeat(50_000)]) {
    const view = new MarkdownView(document.createElement("div"));
    view.show(text);
    expect(view.root.textContent).not.toBe("");
  }
});
