// What asks the server for an answer, and whether it takes that.

import { sentFor, trimmedStart } from "../chat/tree";
import type { Conversation, Sent } from "../chat/tree";
import { strings } from "../strings";

const MAX_MESSAGE_BYTES = 4 << 20; // what the server takes as one message
const MAX_TURNS = 4096; // that it takes as one conversation, the system prompt among them

// Of no answer; where there is a start, leaving out what is above it helps.
export interface Problem {
  readonly text: string;
  readonly chat?: string; // that it is about
  readonly start?: string | null;
}

// The message that asks for an answer of a conversation, or why the server would not take it.
export function requestFor(chat: Conversation, answer: string, response: string): string | Problem {
  const input = sentFor(chat, answer);
  const names = { stream_id: answer, response_id: response };
  const request = { background: true, reasoning_format: "none", ...chat.settings.values, input }; // thoughts come with their marks
  const message = JSON.stringify({ type: "response.create", ...names, ...request });
  return excess(message, input, () => startThatFits(chat, answer)) ?? message;
}

// Where a conversation has to begin for an answer of it to be asked for with fewer turns; null where that does not help.
export function startThatFits(chat: Conversation, answer: string): string | null {
  return trimmedStart(chat, answer, MAX_TURNS - 1);
}

function excess(message: string, input: readonly Sent[], startOf: () => string | null): Problem | null {
  const numBytes = utf8Bytes(message);
  if (numBytes <= MAX_MESSAGE_BYTES && input.length <= MAX_TURNS) return null;
  const start = startOf();
  if (numBytes <= MAX_MESSAGE_BYTES) return { text: strings.tooManyTurns(input.length, MAX_TURNS), start };
  const alone = utf8Bytes(JSON.stringify(input.filter(({ role }, index) => role === "system" || index === input.length - 1)));
  if (start === null || alone > MAX_MESSAGE_BYTES) return { text: strings.messageTooLarge(alone, MAX_MESSAGE_BYTES) };
  return { text: strings.tooLarge(numBytes, MAX_MESSAGE_BYTES), start };
}

function utf8Bytes(text: string): number {
  return new TextEncoder().encode(text).length;
}
