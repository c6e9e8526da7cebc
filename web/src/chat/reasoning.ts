// What a model thinks before it answers, where that is part of its text: <think>…</think>, before all else.

const OPEN = "<think>";
const CLOSE = "</think>";

export interface Parts {
  readonly reasoning: string;
  readonly answer: string;
  readonly isThinking: boolean; // the reasoning has not ended
}

export function partsOf(text: string): Parts {
  const start = text.length - text.trimStart().length;
  const isOpened = text.startsWith(OPEN, start);
  const from = isOpened ? start + OPEN.length : 0;
  // Some models' templates have the opening mark in the prompt, so that it is no part of the text.
  const end = text.indexOf(CLOSE, from);
  if (end !== -1) {
    return { reasoning: text.slice(from, end).trim(), answer: text.slice(end + CLOSE.length).trimStart(), isThinking: false };
  }
  if (isOpened) return { reasoning: text.slice(from).trim(), answer: "", isThinking: true };
  // The mark may be half there.
  const rest = text.slice(start);
  const isMark = rest.length > 0 && rest.length < OPEN.length && OPEN.startsWith(rest);
  return { reasoning: "", answer: isMark ? "" : text, isThinking: isMark };
}
