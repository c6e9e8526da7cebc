// What is selected in an element, through a change of its nodes that leaves its text as it is.

export function keepingSelection(root: HTMLElement, change: () => void): void {
  const selection = getSelection();
  const { anchorNode, anchorOffset, focusNode, focusOffset } = selection ?? {};
  const anchor = anchorNode ? offsetIn(root, anchorNode, anchorOffset ?? 0) : null;
  const focus = focusNode ? offsetIn(root, focusNode, focusOffset ?? 0) : null;
  change();
  if (!selection || !anchorNode || !focusNode || (anchor === null && focus === null)) return;
  const [from, fromOffset] = anchor === null ? [anchorNode, anchorOffset ?? 0] : placeIn(root, anchor);
  const [to, toOffset] = focus === null ? [focusNode, focusOffset ?? 0] : placeIn(root, focus);
  selection.setBaseAndExtent(from, fromOffset, to, toOffset);
}

// How many characters of an element stand before a place; null for one that is not in it.
function offsetIn(root: HTMLElement, node: Node, offset: number): number | null {
  if (!root.contains(node)) return null;
  const range = document.createRange();
  range.setStart(root, 0);
  range.setEnd(node, offset);
  return range.toString().length;
}

function placeIn(root: HTMLElement, offset: number): [Node, number] {
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  let left = offset;
  for (let node = texts.nextNode(); node instanceof Text; node = texts.nextNode()) {
    if (left <= node.length) return [node, left];
    left -= node.length;
  }
  return [root, root.childNodes.length];
}
