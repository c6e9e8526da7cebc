// Keys, as far as they are the page's: an input method has those of a composition.

const COMPOSITION = 229; // key code of what an input method takes, which some browsers give after the composition's end

export function isComposed(event: KeyboardEvent): boolean {
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- nothing else tells it after a composition's end
  return event.isComposing || event.keyCode === COMPOSITION;
}

export function isEscape(event: KeyboardEvent): boolean {
  return event.key === "Escape" && !isComposed(event);
}
