import { afterEach, expect, test, vi } from "vitest";
import { keep, kept, otherTabs } from "./tab";

function refuse(): never {
  throw new DOMException("denied", "SecurityError");
}

function store(over: Partial<Storage> = {}): Partial<Storage> {
  const texts = new Map<string, string>();
  return {
    getItem: (key) => texts.get(key) ?? null,
    setItem: (key, text) => { texts.set(key, text); },
    removeItem: (key) => { texts.delete(key); },
    ...over,
  };
}

afterEach(() => {
  keep("key", null);
  vi.unstubAllGlobals();
});

test("a text is kept, an empty one too, until it is taken back", () => {
  vi.stubGlobal("sessionStorage", store({ getItem: () => "older" }));
  keep("key", "");
  expect(kept("key")).toBe("");
  keep("key", null);
  expect(kept("key")).toBe("older");
});

test.each([
  ["is missing", undefined],
  ["refuses everything", { getItem: refuse, setItem: refuse, removeItem: refuse }],
])("where the store %s, the page has its texts all the same", (_, found) => {
  vi.stubGlobal("sessionStorage", found);
  expect(kept("key")).toBeNull();
  keep("key", "text");
  expect(kept("key")).toBe("text");
});

test("a text for which there is no room leaves none of before", () => {
  const found = store();
  vi.stubGlobal("sessionStorage", found);
  keep("key", "older");
  found.setItem = refuse;
  keep("key", "large");
  expect(found.getItem?.("key")).toBeNull();
});

test.each([["is missing", undefined], ["throws", refuse]])("where the channel %s, other tabs are not heard of", (_, channel) => {
  vi.stubGlobal("BroadcastChannel", channel);
  const tabs = otherTabs();
  tabs.tell("c");
  tabs.listen(() => undefined);
});
