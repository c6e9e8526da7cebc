import { expect, test } from "vitest";
import { isAnySet, NO_SETTINGS, parsed, SETTINGS, settingsOf } from "./settings";

function named(name: string) {
  const found = SETTINGS.find((setting) => setting.name === name);
  if (!found) throw new Error(name);
  return found;
}

test.each([
  ["temperature", "0.7", 0.7],
  ["temperature", "0,7", 0.7],
  ["temperature", " 100 ", 100],
  ["temperature", "", null],
  ["temperature", "100.1", undefined],
  ["temperature", "-1", undefined],
  ["temperature", "hot", undefined],
  ["temperature", "1e1", undefined],
  ["temperature", "0x10", undefined],
  ["temperature", "Infinity", undefined],
  ["top_p", "0", undefined],
  ["top_p", ".5", 0.5],
  ["top_k", "1.5", undefined],
  ["top_k", "1024", 1024],
  ["seed", "9007199254740993", undefined],
  ["presence_penalty", "-2", -2],
])("%s takes %j as %j", (name, text, value) => {
  expect(parsed(named(name), text)).toBe(value);
});

test("settings of a file are those that there are, within their limits", () => {
  const values = { temperature: 0.5, top_k: 1.5, seed: "7", else: 1, top_p: 2 };
  expect(settingsOf({ system: "Be brief", values })).toEqual({ system: "Be brief", values: { temperature: 0.5 } });
  for (const value of [null, 7, "x", {}, { system: 1, values: [] }]) expect(settingsOf(value)).toEqual(NO_SETTINGS);
});

test("whether anything is set", () => {
  expect(isAnySet(NO_SETTINGS)).toBe(false);
  expect(isAnySet({ system: "", values: { seed: 0 } })).toBe(true);
});
