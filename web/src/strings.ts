// Every text that the page shows by itself.

import type { FileError } from "./chat/files";
import type { Setting } from "./chat/settings";
import type { Statistics } from "./chat/tree";

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(1);
}

export const strings = {
  you: "You said:",
  model: "The model said:",
  table: "Table",
  copy: "Copy",
  copyCode: "Copy the code",
  copyAnswer: "Copy this message",
  copied: "Copied",
  copyFailed: "Not copied",

  noModel: "No model",
  serverSilent: "the server does not answer",
  noDevice: "no device in use",
  openingDevice: "opening a device…",
  connectingDevice: "connecting…",
  software: "SOFTWARE",
  models: "Models",
  newChat: "New chat",
  chats: "Chats",

  welcome: "What would you like to ask?",
  privacy: "The model runs on this server, and what you write goes nowhere else.",
  examples: ["What is 17 + 25?", "Which month comes after June?", "Who are you?"],
  conversation: "Conversation",
  prompt: "Your message",
  placeholder: "Write a message",
  send: "Send",
  stop: "Stop",

  waiting: "Your answer comes as soon as the model is loaded",
  thinking: "Thinking",
  thought: "Thoughts",
  thoughtFor: (seconds: number) => `Thought for ${seconds.toFixed(seconds < 10 ? 1 : 0)} s`,
  empty: "(The answer is empty.)",
  stopped: "Stopped",
  truncated: "The answer has reached its length limit",
  failed: (error: string) => `The answer broke off: ${error}`,
  interrupted: "The connection is interrupted; the answer goes on once it is back",
  lost: "The connection was lost, or the page was closed, before the answer ended",
  unanswered: "Not answered, and not sent with what follows",
  answersNow: (model: string) => `${model} answers now`,
  unknownError: "unknown error",
  askAgain: "Ask again",
  goOn: "Continue",
  goOnText: "Please go on where you stopped.",
  edit: "Edit",
  delete: "Delete",
  cancel: "Cancel",
  sendEdited: "Send",
  editText: "The edited message",
  leaveOut: "Leave out older messages and ask again",
  leftOut: "What is above is not sent any more",
  sendAll: "Send it again",
  version: (index: number, count: number) => `${index} of ${count}`,
  previous: "Previous version",
  next: "Next version",

  connecting: "Connecting…",
  silent: "The server does not answer",
  keyNeeded: "This server wants an API key",
  enterKey: "Enter the key",
  context: (share: number) => `${Math.round(share * 100)} % of the context`,
  contextNearlyFull: (share: number) => `${Math.round(share * 100)} % of the context is used: soon older messages have to go`,
  statistics: ({ tokens, tokensPerSecond, firstSeconds, cachedTokens }: Statistics) =>
    [
      tokens === 1 ? "1 token" : `${tokens} tokens`,
      tokensPerSecond === null ? "" : `${tokensPerSecond.toFixed(1)} tokens/s`,
      firstSeconds === undefined ? "" : `first after ${firstSeconds.toFixed(2)} s`,
      cachedTokens === undefined ? "" : `${cachedTokens} from the cache`,
    ]
      .filter(Boolean)
      .join(" · "),
  speed: (rate: number) => `${rate.toFixed(1)} tokens/s`,
  tooLarge: (bytes: number, limit: number) =>
    `The message has, with its conversation, ${megabytes(bytes)} MB; the server takes ${megabytes(limit)} MB`,
  notKept: (error: string) => `Conversations can't be kept in this browser: ${error}`,

  key: "API key",
  keyRefused: "The server did not take this key.",
  connect: "Connect",

  modelsTitle: "Models on this server",
  modelsHint: "Loading a model ends the answers of the one before it.",
  unload: "Unload",
  close: "Close",
  httpStatus: (status: number) => `the server answered with status ${status}`,

  chatsTitle: "Conversations",
  search: "Search conversations",
  noChats: "Nothing is kept yet",
  nothingFound: "Nothing found",
  rename: "Rename",
  renameOf: (title: string) => `Rename ${title}`,
  deleteOf: (title: string) => `Delete ${title}`,
  newTitle: "New title",
  untitled: "Untitled",
  exportAll: "Export",
  importFile: "Import",
  imported: (count: number) => (count === 1 ? "One conversation was read" : `${count} conversations were read`),
  importFailed: (error: string) => `The file could not be read: ${error}`,
  chatDeleted: "The conversation was deleted",
  messageDeleted: "The message was deleted",
  newChatBegun: "A new chat has begun",
  undo: "Undo",

  attach: "Attach text files",
  files: "Files",
  size: (bytes: number) => (bytes < 1000 ? `${bytes} B` : `${(bytes / 1000).toFixed(bytes < 10_000 ? 1 : 0)} KB`),
  removeFile: (name: string) => `Remove ${name}`,
  fileRefused: ({ file, reason, bytes }: FileError) =>
    ({
      large: `${file} has ${megabytes(bytes)} MB; a file may have 1.0 MB`,
      binary: `${file} is no text in UTF-8`,
      unreadable: `${file} could not be read`,
      many: `${file} is one file too many; a question takes ${bytes}`,
    })[reason],

  settingsTitle: "Settings of this conversation",
  settingsButton: "Settings of this conversation",
  settingsAreSet: "Settings of this conversation: some are set",
  systemPrompt: "System prompt",
  systemPromptHint: "What the model is told before the conversation, such as who it is or how it should answer.",
  modelsOwn: "default",
  resetSettings: "Reset",
  saveSettings: "Save",
  expectedNumber: ({ min, max, isWhole, isOpen }: Setting) =>
    `Expected ${isWhole ? "a whole number" : "a number"}, ${isOpen ? `more than ${min}, at most ${max}` : `${min} to ${max}`}`,
  settings: {
    temperature: "Temperature",
    top_p: "Top p",
    top_k: "Top k",
    min_p: "Min p",
    repetition_penalty: "Repetition penalty",
    presence_penalty: "Presence penalty",
    frequency_penalty: "Frequency penalty",
    max_output_tokens: "Most tokens",
    seed: "Seed",
  } as Record<string, string>,

  states: {
    empty: () => "No model is loaded: choose one under Models",
    waiting: (model) => `Answers under way end first; then ${model ? `${model} is loaded` : "the model is unloaded"}`,
    closing: (model) => (model ? `The last model is closed, then ${model} is loaded` : "The model is unloaded"),
    opening: (model) => `Opening ${model ?? ""}`,
    loading: (model) => `Loading ${model ?? ""}`,
    error: (model, error) => `${model ?? ""} could not be loaded: ${error ?? ""}`,
  } as Record<string, (model: string | null, error: string | null) => string>,
  words: {
    waiting: "waits",
    closing: "waits",
    opening: "opening",
    loading: "loading",
    ready: "loaded",
    error: "failed",
  } as Record<string, string>,
};
