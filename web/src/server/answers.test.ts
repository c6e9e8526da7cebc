import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Chats } from "../chat/chats";
import { emptyConversation } from "../chat/tree";
import type { Conversation, Message } from "../chat/tree";
import { Answers } from "./answers";
import type { Connection } from "./connection";

interface Sent {
  type: string;
  stream_id: string;
  response_id: string;
  input: { content: string }[];
}

interface Made {
  chats: Chats;
  answers: Answers;
  sent: Sent[];
  connection: { isOpen: boolean };
}

const deleted = vi.fn<(url: string) => Promise<Response>>();

beforeEach(() => {
  deleted.mockReset().mockResolvedValue(new Response("{}"));
  vi.stubGlobal("fetch", deleted);
});

afterEach(() => { vi.unstubAllGlobals(); });

function made(...kept: Conversation[]): Made {
  const sent: Sent[] = [];
  const connection = { isOpen: true, headers: {}, send: (text: string) => { sent.push(JSON.parse(text) as Sent); } };
  const chats = new Chats();
  chats.add(kept);
  chats.open(kept[0]?.id ?? null);
  return { chats, answers: new Answers(chats, connection as unknown as Connection), sent, connection };
}

// Asks, and lets the server begin; returns the names of answer and response.
function begun(page: Made, delta = "Hello"): { answer: string; response: string } {
  page.answers.ask("Hi");
  const asked = page.sent.at(-1);
  if (!asked) throw new Error("nothing was sent");
  const { stream_id: answer, response_id: response } = asked;
  const event = { stream_id: answer, response: { id: response, model: "m", status: "in_progress" } };
  page.answers.received({ ...event, type: "response.created", sequence_number: 0 });
  page.answers.received({ stream_id: answer, type: "response.output_text.delta", sequence_number: 1, delta });
  return { answer, response };
}

function message({ chats }: Made, id: string) {
  return chats.current.value.messages.get(id);
}

function lose(page: Made): void {
  page.connection.isOpen = false;
  page.answers.disconnected();
}

function connect(page: Made): void {
  page.sent.length = 0;
  page.connection.isOpen = true;
  page.answers.connected();
}

async function settled(): Promise<void> {
  for (let turn = 0; turn < 20; turn += 1) await Promise.resolve();
}

test("a question notes where its answer will be found before the server has said anything", () => {
  const page = made();
  page.answers.ask("Hi");
  const leaf = page.chats.path.value.at(-1);
  expect(leaf?.response).toMatch(/^resp_[0-9a-f]{24}$/);
  expect(page.sent[0]).toMatchObject({ type: "response.create", response_id: leaf?.response });
});

test("an answer of which the server's first event never came is taken up from its beginning, and lost if it is not there", async () => {
  const before = made();
  before.answers.ask("Hi");
  const page = made(before.chats.current.value);
  page.answers.connected();
  await settled();
  const leaf = page.chats.path.value.at(-1);
  expect(page.sent).toEqual([{ type: "unicorn.resume", stream_id: leaf?.id, response_id: leaf?.response }]);
  page.answers.refused({ type: "error", stream_id: leaf?.id, error: { code: "response_not_found", message: "x" } });
  await settled();
  expect([page.chats.path.value.at(-1)?.state, deleted.mock.calls]).toEqual(["lost", []]);
});

test("an answer that is taken up and waits for its model is stopped by its stream: the server does not know it yet", async () => {
  const before = made();
  before.answers.ask("Hi");
  const page = made(before.chats.current.value);
  page.answers.connected();
  await settled();
  const answer = page.chats.path.value.at(-1)?.id ?? "";
  page.answers.stop(answer);
  expect(page.sent.at(-1)).toEqual({ type: "response.cancel", stream_id: answer });
});

test.each(["before", "after"])("an answer that is stopped %s the connection breaks is stopped at the server once that is back", async (when) => {
  const page = made();
  const { answer, response } = begun(page);
  if (when === "before") page.answers.stop(answer);
  lose(page);
  page.answers.stop(answer);
  expect(message(page, answer)).toMatchObject({ state: "stopped", text: "Hello", response });
  await settled();
  expect(deleted).not.toHaveBeenCalled();
  connect(page);
  await settled();
  expect(page.sent).toEqual([]);
  expect(deleted.mock.calls.map(([url]) => url)).toEqual([`/v1/responses/${response}`]);
  expect(message(page, answer)).not.toHaveProperty("response");
});

test("an answer that was stopped before the page was loaded anew is stopped at the server", async () => {
  const before = made();
  const { answer, response } = begun(before);
  before.answers.stop(answer);
  before.answers.leave();
  const page = made(before.chats.current.value);
  deleted.mockRejectedValueOnce(new Error("not there yet"));
  page.answers.connected();
  await settled();
  expect([message(page, answer)?.response, page.sent]).toEqual([response, []]);
  page.answers.connected();
  await settled();
  expect(message(page, answer)).not.toHaveProperty("response");
});

test("what was stopped is stopped at the server also where the database tells of it late", async () => {
  const before = made();
  const { answer, response } = begun(before);
  lose(before);
  before.answers.stop(answer);
  const page = made();
  page.answers.connected();
  page.chats.add([before.chats.current.value]);
  page.answers.adoptAll();
  await settled();
  expect(deleted.mock.calls.map(([url]) => url)).toEqual([`/v1/responses/${response}`]);
});

test("a question that is deleted while it is answered comes back with what had come, and has been stopped", async () => {
  const page = made();
  const { answer, response } = begun(page);
  const question = message(page, answer)?.parent ?? "";
  const undo = page.answers.remove(page.chats.currentId.value, question);
  expect(page.chats.path.value).toEqual([]);
  page.answers.received({ stream_id: answer, type: "response.output_text.delta", sequence_number: 2, delta: " there" });
  undo();
  expect(message(page, answer)).toMatchObject({ state: "stopped", text: "Hello" });
  await settled();
  expect(deleted.mock.calls[0]?.[0]).toBe(`/v1/responses/${response}`);
  expect(page.answers.isAnyGrowing).toBe(false);
});

test("a conversation that is deleted while it is answered comes back in the same way", async () => {
  const page = made();
  const { answer, response } = begun(page);
  const id = page.chats.currentId.value;
  const undo = page.answers.removeChat(id);
  await settled();
  expect([page.chats.all.value.has(id), deleted.mock.calls[0]?.[0]]).toEqual([false, `/v1/responses/${response}`]);
  undo();
  page.chats.open(id);
  expect(message(page, answer)).toMatchObject({ state: "stopped", text: "Hello" });
});

test("an answer that another tab follows is stopped with what is deleted", async () => {
  const before = made();
  const { answer, response } = begun(before);
  const page = made(before.chats.current.value);
  const undo = page.answers.removeChat(page.chats.currentId.value);
  await settled();
  expect(deleted.mock.calls[0]?.[0]).toBe(`/v1/responses/${response}`);
  undo();
  page.chats.open(before.chats.currentId.value);
  expect(message(page, answer)?.state).toBe("stopped");
});

test("an answer whose message another tab deleted is followed no longer, here and at the server", async () => {
  const page = made();
  const { answer, response } = begun(page);
  page.chats.dispatch(page.chats.currentId.value, { type: "delete", message: answer });
  await settled();
  expect(page.answers.isAnyGrowing).toBe(false);
  expect(deleted.mock.calls.map(([url]) => url)).toEqual([`/v1/responses/${response}`]);
});

function long(turns: number, text: string): Conversation {
  const messages = new Map<string, Message>();
  for (let index = 0; index < turns; index += 1) {
    const above = index ? `a${index - 1}` : null;
    messages.set(`q${index}`, { id: `q${index}`, parent: above, role: "user", text: `${text}${index}`, state: "done", created: index });
    messages.set(`a${index}`, { id: `a${index}`, parent: `q${index}`, role: "assistant", text: "yes", state: "done", created: index });
  }
  return { ...emptyConversation("c", 0), leaf: `a${turns - 1}`, messages };
}

test.each([
  ["more bytes", 5, "x".repeat(1_000_000), /5\.0 MB; the server takes 4\.2 MB/],
  ["more turns", 2048, "", /4097 messages; the server takes 4096/],
])("a conversation with %s than the server takes is left as it is, and goes on without its oldest turns", (_, turns, text, words) => {
  const page = made(long(turns, text));
  const before = page.chats.current.value;
  expect(page.answers.ask("And?")).toBe(false);
  const problem = page.answers.problem.value;
  expect(problem?.text).toMatch(words);
  expect([page.chats.current.value, page.sent]).toEqual([before, []]);
  expect(problem?.start).toMatch(/^q/);
  page.chats.dispatch("c", { type: "trim", start: problem?.start ?? null });
  expect(page.answers.ask("And?")).toBe(true);
  expect(page.answers.problem.value).toBeNull();
  expect(page.sent[0]?.input.at(-1)?.content).toBe("And?");
  expect(page.chats.current.value.messages.size).toBe(2 * turns + 2);
});

test("a single message that is too large is told apart, since nothing above it helps", () => {
  const page = made(long(3, "short"));
  expect(page.answers.ask("x".repeat(5_000_000))).toBe(false);
  expect(page.answers.problem.value).toEqual({ text: expect.stringContaining("This message alone") as string, chat: "c" });
});
