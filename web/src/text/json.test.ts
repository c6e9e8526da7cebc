import { expect, test } from "vitest";
import { indented } from "./json";

test.each([
  ['{"a":1,"b":[true,null,{"c":"x, [y]: \\"z\\""}],"d":{}, "e":[ ]}'],
  ["[]"],
  ['"text"'],
  [' [ 1 , [ [ ] , { } ] ] '],
])("%s is indented as others do it", (json) => {
  expect(indented(json)).toBe(JSON.stringify(JSON.parse(json), null, 2));
});

test("numbers keep their digits", () => {
  expect(indented('{"a":12345678901234567890,"b":1.10}')).toBe('{\n  "a": 12345678901234567890,\n  "b": 1.10\n}');
});

test.each([['{"a":'], ["no JSON"], [""], ["[".repeat(100) + "]".repeat(100)]])("what is none, or too deep, stays: %s", (text) => {
  expect(indented(text)).toBe(text);
});
