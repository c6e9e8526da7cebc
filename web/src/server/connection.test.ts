// @vitest-environment happy-dom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Connection } from "./connection";

class FakeSocket extends EventTarget {
  static made: FakeSocket[] = [];
  readonly sent: string[] = [];

  constructor() {
    super();
    FakeSocket.made.push(this);
  }

  static get last(): FakeSocket {
    const found = FakeSocket.made.at(-1);
    if (!found) throw new Error("no socket was made");
    return found;
  }

  send(text: string): void {
    this.sent.push(text);
  }

  close(): void {
    this.dispatchEvent(new Event("close"));
  }

  says(event: object): void {
    this.dispatchEvent(new MessageEvent("message", { data: JSON.stringify(event) }));
  }
}

const REFUSAL = { type: "error", status: 401, error: { message: "no key" } };

beforeEach(() => {
  FakeSocket.made = [];
  vi.useFakeTimers();
  vi.stubGlobal("WebSocket", FakeSocket);
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

function barred() {
  const listener = { opened: vi.fn(), closed: vi.fn(), received: vi.fn(), unauthorized: vi.fn() };
  const connection = new Connection(listener);
  connection.start();
  refuse();
  return { listener, connection };
}

function refuse(): void {
  FakeSocket.last.dispatchEvent(new Event("open"));
  FakeSocket.last.says(REFUSAL);
  FakeSocket.last.close();
}

test("a server that wants a key is asked now and then whether it still does, and the reader once", () => {
  const { listener, connection } = barred();
  listener.opened.mockClear();
  for (let number = 2; number < 5; number += 1) {
    vi.advanceTimersByTime(8000);
    expect(FakeSocket.made.length).toBe(number);
    refuse();
  }
  expect([listener.opened.mock.calls.length, listener.unauthorized.mock.calls.length]).toEqual([0, 1]);
  expect(connection.isOpen).toBe(false);
  vi.advanceTimersByTime(8000);
  FakeSocket.last.dispatchEvent(new Event("open"));
  expect(connection.isOpen).toBe(false);
  FakeSocket.last.says({ type: "unicorn.model" });
  expect([connection.isOpen, listener.opened.mock.calls.length]).toEqual([true, 1]);
});

test("a key that is entered goes at once, also while the server is being asked without one", () => {
  const { connection } = barred();
  vi.advanceTimersByTime(8000);
  const asking = FakeSocket.last;
  connection.setKey("sesame");
  expect(FakeSocket.last).not.toBe(asking);
  FakeSocket.last.dispatchEvent(new Event("open"));
  expect(FakeSocket.last.sent).toEqual([JSON.stringify({ type: "unicorn.auth", key: "sesame" })]);
  expect(connection.isOpen).toBe(true);
});
