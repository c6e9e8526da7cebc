// Formulas as MathML. A file of its own, loaded when there is a formula.

import temml from "temml";

const MAX_CHARS = 4000;
const MAX_CELLS = 400; // of matrices, whose place takes longer than all else

// Shows a formula in an element; returns whether it could be read.
export function showFormula(element: HTMLElement, source: string, isBlock: boolean): boolean {
  if (source.length > MAX_CHARS || (source.match(/&|\\\\/g)?.length ?? 0) > MAX_CELLS) return false;
  const made = document.createElement("span");
  try {
    temml.render(source, made, { displayMode: isBlock, throwOnError: true, trust: false, maxSize: [25, 25], maxExpand: 200 });
  } catch {
    return false;
  }
  element.replaceChildren(...made.childNodes);
  return true;
}
