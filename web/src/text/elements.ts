// Elements that texts are made of.

export function withText(name: string, text: string): HTMLElement {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

// What may be wider than its room scrolls, also by keyboard.
export function makeScroller(element: HTMLElement, label: string): void {
  element.tabIndex = 0;
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", label);
}

// Changes the end that differs, so that a selection before it stays.
export function changeText(node: Text, text: string): void {
  const old = node.data;
  let same = text.startsWith(old) ? old.length : 0;
  while (same < old.length && same < text.length && old[same] === text[same]) same += 1;
  if (same < old.length) node.deleteData(same, old.length - same);
  if (same < text.length) node.appendData(text.slice(same));
}
