// What takes a while, and is done to what is finished: colours for programs, and formulas.

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
}
