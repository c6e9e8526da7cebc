import { expect, test } from "vitest";
import { partsOf } from "./reasoning";

test.each([
  ["Hello", "", "Hello", false],
  ["<think>\nHm.\n</think>\n\nHello", "Hm.", "Hello", false],
  ["<think>Hm", "Hm", "", true],
  ["\n<think>", "", "", true],
  ["<thi", "", "", true],
  ["<", "", "", true],
  ["<b", "", "<b", false],
  ["Hm.</think>Hello", "Hm.", "Hello", false],
  ["<think></think>Hello", "", "Hello", false],
  ["A <think> is no mark", "", "A <think> is no mark", false],
  ["", "", "", false],
])("%j", (text, reasoning, answer, isThinking) => {
  expect(partsOf(text)).toEqual({ reasoning, answer, isThinking });
});
