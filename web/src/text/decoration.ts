// What takes a while, and is done to what is finished: colours for programs, and formulas.

import { strings } from "../strings";
import { makeScroller } from "./elements";
import { loadFormula, loadHighlight } from "./lazy";
import { keepingSelection } from "./selection";
import { pause } from "./slices";

export async function colour(block: HTMLElement): Promise<void> {
  const code = block.querySelector("code");
  const text = code?.textContent ?? "";
  const language = block.dataset["language"] ?? "";
  if (!code || !language) return;
  const highlight = await loadHighlight();
  const nodes = await highlight?.highlighted(text, language.toLowerCase(), pause);
  if (nodes && code.textContent === text) keepingSelection(code, () => { code.replaceChildren(...nodes); });
}

export async function typeset(element: HTMLElement): Promise<void> {
  const formula = await loadFormula();
  await pause();
  const isShown = formula?.showFormula(element, element.textContent, element.classList.contains("display"));
  if (!isShown) element.classList.add("source");
  else if (isTooWide(element)) {
    element.classList.add("display");
    makeScroller(element, strings.formula);
  }
}

// A formula in a line is not broken, so that one that is wider than its line stands by itself.
function isTooWide(element: HTMLElement): boolean {
  const line = element.classList.contains("display") ? null : element.closest("p, li, td, th, h1, h2, h3, h4, h5, h6");
  return line !== null && element.getBoundingClientRect().width > line.clientWidth;
}
