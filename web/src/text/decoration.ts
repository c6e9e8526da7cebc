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
  else if (!element.classList.contains("display")) measure(element);
}

const toMeasure: HTMLElement[] = [];

// A formula in a line is not broken, so that one that is wider than its line stands by itself. All are measured at once:
// each time after a change the browser lays out the page.
function measure(element: HTMLElement): void {
  if (toMeasure.push(element) > 1) return;
  requestAnimationFrame(() => {
    for (const wide of toMeasure.splice(0).filter(isTooWide)) {
      wide.classList.add("display");
      makeScroller(wide, strings.formula);
    }
  });
}

function isTooWide(element: HTMLElement): boolean {
  const line = element.closest("p, li, td, th, h1, h2, h3, h4, h5, h6");
  return line !== null && element.getBoundingClientRect().width > line.clientWidth;
}
