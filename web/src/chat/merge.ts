// Two tabs have one conversation: what was changed in this one is laid over what the other has written.

import { isUnderWay } from "./tree";
import type { Conversation, Message } from "./tree";

// `base` is what both began with. What either has deleted is gone, with what is below it; the draft is each tab's own.
export function merged(base: Conversation | undefined, mine: Conversation, theirs: Conversation): Conversation {
  const messages = new Map<string, Message>();
  const isPlaced = ({ parent }: Message): boolean => parent === null || messages.has(parent);
  for (const message of theirs.messages.values()) {
    const own = mine.messages.get(message.id);
    const before = base?.messages.get(message.id);
    if ((before && !own) || !isPlaced(message)) continue;
    messages.set(message.id, own && own !== before && !hasEnded(own, message) ? own : message);
  }
  for (const message of mine.messages.values()) {
    const isNew = !theirs.messages.has(message.id) && !base?.messages.has(message.id);
    if (isNew && isPlaced(message)) messages.set(message.id, message);
  }
  const chosen = <Key extends keyof Conversation>(key: Key): Conversation[Key] => (mine[key] === base?.[key] ? theirs : mine)[key];
  const leaf = [chosen("leaf"), theirs.leaf, [...messages.keys()].at(-1) ?? null].find((id) => id === null || messages.has(id));
  const next: Conversation = {
    id: mine.id,
    title: chosen("title"),
    created: mine.created,
    changed: Math.max(mine.changed, theirs.changed),
    draft: mine.draft,
    draftFiles: mine.draftFiles,
    settings: chosen("settings"),
    leaf: leaf ?? null,
    start: chosen("start"),
    messages,
  };
  return isSame(next, theirs) ? theirs : next;
}

function hasEnded(own: Message, message: Message): boolean {
  return isUnderWay(own) && !isUnderWay(message);
}

function isSame(one: Conversation, other: Conversation): boolean {
  const isSameHead = (Object.keys(one) as (keyof Conversation)[]).every(
    (key) => key === "messages" || one[key] === other[key] || (key === "draftFiles" && one.draftFiles.length + other.draftFiles.length === 0),
  );
  return isSameHead && one.messages.size === other.messages.size && [...one.messages].every(([id, message]) => other.messages.get(id) === message);
}
