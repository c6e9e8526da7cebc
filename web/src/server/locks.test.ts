import { afterEach, expect, test, vi } from "vitest";
import { growing, hold } from "./locks";

function refuse(): never {
  throw new DOMException("denied", "SecurityError");
}

afterEach(() => { vi.unstubAllGlobals(); });

test.each([
  ["are missing", {}],
  ["are refused", { get locks() { return refuse(); } }],
  ["throw", { locks: { request: refuse, query: refuse } }],
  ["reject", { locks: { request: () => Promise.reject(new Error("denied")), query: () => Promise.reject(new Error("denied")) } }],
])("where locks %s, each tab follows what it finds", async (_, navigator) => {
  vi.stubGlobal("navigator", navigator);
  expect(await growing()).toEqual(new Set());
  const { held, release } = hold("answer");
  await held;
  release();
});
