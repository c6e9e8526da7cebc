// Parts of the page that are loaded when something needs them, from files that the build names.

type Highlight = typeof import("./highlight");
type Formula = typeof import("./formula");

declare const HIGHLIGHT_FILE: string;
declare const FORMULA_FILE: string;

let highlight: Promise<Highlight | null> | undefined;
let formula: Promise<Formula | null> | undefined;

// Null where it can't be loaded: a server that went, or one of another version.
export function loadHighlight(): Promise<Highlight | null> {
  highlight ??= (import(HIGHLIGHT_FILE) as Promise<Highlight>).catch(() => null);
  return highlight;
}

export function loadFormula(): Promise<Formula | null> {
  formula ??= (import(FORMULA_FILE) as Promise<Formula>).catch(() => null);
  return formula;
}
