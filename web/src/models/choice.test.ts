import { expect, test } from "vitest";
import { choiceOf, NO_OPTIONS } from "./choice";

test("what is left open is left to the server", () => {
  expect(choiceOf("a", NO_OPTIONS)).toEqual({ model: "a" });
});

test("scheme, context and adapters go along", () => {
  expect(choiceOf("a", { weights: "int4", context: " 4096 ", adapters: { poet: "0.5", cook: "1" } })).toEqual({
    model: "a", weights: "int4", max_context: 4096, loras: [{ name: "poet", weight: 0.5 }, { name: "cook", weight: 1 }],
  });
});

test("there is no request with a value that can't work", () => {
  for (const context of ["many", "-1", "1.5", "1e12"]) expect(choiceOf("a", { ...NO_OPTIONS, context })).toBeNull();
  for (const weight of ["", "x", "1e9"]) expect(choiceOf("a", { ...NO_OPTIONS, adapters: { poet: weight } })).toBeNull();
});
