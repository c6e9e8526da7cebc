// The answers that grow in this tab: what asks for them, and the server's events, which become those of conversations.
// An answer goes on at the server when its listener goes, and is taken up again by whichever tab is there: by a name that this
// page chose, so that it is found also where the page went before the server's first event came.

import { effect, signal } from "@preact/signals";
import type { Chats } from "../chat/chats";
import type { Attached } from "../chat/files";
import { newId } from "../chat/id";
import { isUnderWay, reduce, removal, subtree } from "../chat/tree";
import type { ChatEvent, Conversation, Message } from "../chat/tree";
import { strings } from "../strings";
import type { Connection, ServerEvent } from "./connection";
import { hold } from "./locks";
import { requestFor, startThatFits } from "./request";
import type { Problem } from "./request";
import { Stream } from "./stream";
import type { Usage } from "./stream";

const DELTA_INTERVAL_MS = 25; // text that comes in this time is shown at once
const JSON_FORMATS = new Set(["json_object", "json_schema"]);
const NOT_THERE = new Set(["response_not_found", "events_not_kept"]);

interface ResponseObject {
  id: string;
  model: string;
  status: string;
  text?: { format?: { type: string } };
  error?: { message: string } | null;
  usage?: Usage | null;
}

export class Answers {
  readonly speed = signal("");
  readonly problem = signal<Problem | null>(null);
  readonly stopping = signal<ReadonlySet<string>>(new Set());
  private readonly growing = signal<ReadonlySet<string>>(new Set());
  private readonly streams = new Map<string, Stream>();
  private readonly awaited = new Set<string>(); // answers that another tab has, until that lets go
  private readonly unwanted = new Map<string, { chat: string; answer: string }>(); // responses, until the server knows that

  constructor(
    private readonly chats: Chats,
    private readonly connection: Connection,
  ) {
    // What this or another tab has deleted or ended is followed no longer.
    effect(() => {
      const all = chats.all.value;
      for (const [answer, stream] of [...this.streams]) {
        const message = all.get(stream.chat)?.messages.get(answer);
        if (!message || !isUnderWay(message)) this.drop(answer, stream);
      }
    });
  }

  // Whether this tab follows an answer.
  isGrowing(answer: string): boolean {
    return this.growing.value.has(answer);
  }

  get isAnyGrowing(): boolean {
    return this.streams.size > 0;
  }

  // Asks, unless what there is to send is too much; returns whether it was asked.
  ask(text: string, files: readonly Attached[] = []): boolean {
    return this.begin({ type: "ask", question: newId(), text, files });
  }

  retry(message: string): boolean {
    return this.begin({ type: "retry", message });
  }

  edit(message: string, text: string, files: readonly Attached[] = []): boolean {
    return this.begin({ type: "edit", message, question: newId(), text, files });
  }

  // Leaves out the oldest turns of what an answer was told, and asks again.
  trimAndRetry(answer: string): void {
    const start = startThatFits(this.chats.current.value, answer);
    if (start === null) return;
    this.chats.dispatch(this.chats.currentId.value, { type: "trim", start });
    this.retry(answer);
  }

  // Whether there are older turns that can be left out.
  canTrim(answer: string): boolean {
    return startThatFits(this.chats.current.value, answer) !== null;
  }

  stop(answer: string): void {
    const stream = this.streams.get(answer);
    if (!stream || this.stopping.value.has(answer)) return;
    if (!this.connection.isOpen) {
      this.end({ type: "stopped", answer, isTold: false });
      return;
    }
    this.stopping.value = new Set([...this.stopping.value, answer]);
    const which = stream.isBegun ? { response_id: stream.response } : { stream_id: answer };
    this.send({ type: "response.cancel", ...which });
  }

  // Takes away a message with what is below it, and ends what grows there; returns what brings it back.
  remove(chat: string, message: string): () => void {
    this.endAll(chat, (there) => subtree(there, message));
    const there = this.chats.all.value.get(chat);
    if (!there) return () => undefined;
    this.speed.value = "";
    const removed = removal(there, message);
    this.chats.dispatch(chat, { type: "delete", message });
    return () => { this.chats.dispatch(chat, { type: "restore", removed }); };
  }

  // The same of a whole conversation.
  removeChat(chat: string): () => void {
    this.endAll(chat, (there) => [...there.messages.values()]);
    if (chat === this.chats.currentId.value) this.speed.value = "";
    const removed = this.chats.remove(chat);
    return () => { if (removed) this.chats.restore(removed); };
  }

  // The page is left: what was to be stopped is not taken up again.
  leave(): void {
    for (const answer of this.stopping.value) this.end({ type: "stopped", answer, isTold: false });
  }

  // Follows every answer that is under way and that no other tab follows; those of other tabs once these let go.
  adopt(chat: string): void {
    for (const message of this.chats.all.value.get(chat)?.messages.values() ?? []) {
      if (isAtServer(message) && !this.streams.has(message.id) && !this.awaited.has(message.id)) {
        void this.adoptOne(chat, message.id);
      }
    }
  }

  // The connection is there, for the first time or again: answers go on where they were.
  connected(): void {
    for (const [answer, stream] of this.streams) this.resume(answer, stream);
    this.adoptAll();
  }

  // What goes on at the server is taken up, and what was stopped while nobody could be told is stopped there.
  adoptAll(): void {
    for (const [chat, { messages }] of this.chats.all.value) {
      this.adopt(chat);
      for (const message of messages.values()) {
        if (message.response !== undefined && !isUnderWay(message)) this.unwanted.set(message.response, { chat, answer: message.id });
      }
    }
    this.dismissAll();
  }

  // Tells the server, where it could not be told before, what it need not go on with or keep.
  dismissAll(): void {
    for (const [response, { chat, answer }] of [...this.unwanted]) void this.dismiss(response, chat, answer);
  }

  // The connection is lost. What was to be stopped is, as far as this page goes; the rest is taken up over the next one.
  disconnected(): void {
    this.leave();
    for (const [answer, stream] of this.streams) this.show(answer, stream);
    this.speed.value = "";
  }

  received(event: ServerEvent): void {
    const answer = String(event["stream_id"]);
    const stream = this.streams.get(answer);
    if (!stream) return;
    const response = event["response"] as ResponseObject;
    const number = Number(event["sequence_number"]);
    switch (event.type) {
      case "response.created":
        stream.isBegun = true;
        stream.received = number;
        this.chats.dispatch(stream.chat, {
          type: "created", answer, model: response.model, response: response.id, received: number,
          isJson: JSON_FORMATS.has(response.text?.format?.type ?? ""),
        });
        void this.chats.flush(); // so that a page that is loaded anew finds it
        break;
      case "response.output_text.delta":
        if (stream.grew(String(event["delta"]), number)) this.showSoon(answer, stream);
        break;
      case "response.completed":
        this.completed(answer, response, false);
        break;
      case "response.incomplete":
        if (response.status === "cancelled") this.end({ type: "stopped", answer, isTold: true });
        else this.completed(answer, response, true);
        break;
      case "response.failed":
        this.end({ type: "failed", answer, error: response.error?.message ?? strings.unknownError });
        break;
      default:
        if (stream.called(event, number)) this.showSoon(answer, stream);
    }
  }

  refused(event: ServerEvent): void {
    const error = event["error"] as { message: string; code: string | null };
    const answer = String(event["stream_id"]);
    const isGone = NOT_THERE.has(error.code ?? "");
    const stream = this.streams.get(answer);
    if (!stream) {
      if (!isGone) this.problem.value = { text: error.message }; // else it ended while "stop" was on its way
      return;
    }
    const isThere = stream.isBegun && error.code !== "response_not_found";
    if (isGone) this.end({ type: "lost", answer }, isThere);
    else this.end({ type: "failed", answer, error: error.message, ...(error.code && { code: error.code }) }, isThere);
  }

  private begin(asked: Asked): boolean {
    if (!this.connection.isOpen) return false;
    const before = this.chats.current.value;
    const answer = newId();
    const response = `resp_${answer}`;
    const event: ChatEvent = { ...asked, answer, response, at: Date.now() };
    const after = reduce(before, event);
    const asking = requestFor(after, answer, response);
    if (typeof asking !== "string") {
      this.problem.value = { ...asking, chat: before.id };
      return false;
    }
    this.chats.dispatch(before.id, event);
    this.problem.value = null;
    this.speed.value = "";
    const { release } = hold(answer);
    this.follow(answer, new Stream(before.id, response, release, true));
    this.connection.send(asking);
    void this.chats.flush();
    return true;
  }

  // Ends what is under way of some messages, here and at the server.
  private endAll(id: string, which: (chat: Conversation) => readonly Message[]): void {
    const chat = this.chats.all.value.get(id);
    for (const message of chat ? which(chat).filter(isUnderWay) : []) {
      const event = { type: "stopped", answer: message.id, isTold: false } as const;
      if (this.streams.has(message.id)) {
        this.end(event);
        continue;
      }
      this.chats.dispatch(id, event);
      if (message.response !== undefined) void this.dismiss(message.response, id, message.id);
    }
  }

  private async adoptOne(chat: string, answer: string): Promise<void> {
    this.awaited.add(answer);
    const { held, release } = hold(answer);
    await held;
    this.awaited.delete(answer);
    // What the tab that had it has written last.
    await this.chats.reread(chat);
    const found = this.chats.all.value.get(chat)?.messages.get(answer);
    if (!found?.response || !isAtServer(found) || this.streams.has(answer)) {
      release();
      return;
    }
    const stream = new Stream(chat, found.response, release, false, found.calls);
    stream.isBegun = found.received !== undefined;
    stream.received = found.received ?? -1;
    this.follow(answer, stream);
    if (this.connection.isOpen) this.resume(answer, stream);
  }

  private follow(answer: string, stream: Stream): void {
    this.streams.set(answer, stream);
    this.growing.value = new Set(this.streams.keys());
  }

  private resume(answer: string, stream: Stream): void {
    stream.takenUp();
    this.send({
      type: "unicorn.resume",
      stream_id: answer,
      response_id: stream.response,
      ...(stream.received >= 0 && { starting_after: stream.received }),
    });
  }

  private showSoon(answer: string, stream: Stream): void {
    stream.timer ??= setTimeout(() => {
      this.show(answer, stream);
    }, DELTA_INTERVAL_MS);
  }

  private show(answer: string, stream: Stream): void {
    clearTimeout(stream.timer);
    stream.timer = undefined;
    const piece = stream.take();
    if (!piece) return;
    this.chats.dispatch(stream.chat, { type: "delta", answer, ...piece });
    const rate = stream.tokensPerSecond();
    if (rate !== null) this.speed.value = strings.speed(rate);
  }

  private completed(answer: string, response: ResponseObject, isTruncated: boolean): void {
    const stream = this.streams.get(answer);
    const statistics = stream && response.usage && stream.statistics(response.usage);
    this.end({ type: "done", answer, isTruncated, ...(statistics && { statistics }) });
    const rate = statistics?.tokensPerSecond ?? null;
    if (rate !== null) this.speed.value = strings.speed(rate);
  }

  private end(event: ChatEvent & { answer: string }, isThere = true): void {
    const stream = this.streams.get(event.answer);
    if (!stream) return;
    this.show(event.answer, stream);
    this.leaveAlone(event.answer, stream);
    this.chats.dispatch(stream.chat, event);
    void this.chats.flush().then(() => {
      stream.release();
      if (isThere) void this.dismiss(stream.response, stream.chat, event.answer);
    });
  }

  private drop(answer: string, stream: Stream): void {
    this.leaveAlone(answer, stream);
    stream.release();
    void this.dismiss(stream.response, stream.chat, answer);
  }

  private leaveAlone(answer: string, stream: Stream): void {
    clearTimeout(stream.timer);
    this.streams.delete(answer);
    this.growing.value = new Set(this.streams.keys());
    this.stopping.value = new Set([...this.stopping.peek()].filter((other) => other !== answer));
  }

  // Ends an answer at the server where it is under way: it need not go on, nor be kept where this browser has it.
  private async dismiss(response: string, chat: string, answer: string): Promise<void> {
    this.unwanted.set(response, { chat, answer });
    if (!this.connection.isOpen) return; // it is told over the next connection
    const { headers } = this.connection;
    try {
      const told = await fetch(`/v1/responses/${encodeURIComponent(response)}`, { method: "DELETE", headers, keepalive: true });
      if (!told.ok && told.status !== 404) return;
    } catch {
      return;
    }
    this.unwanted.delete(response);
    this.chats.dispatch(chat, { type: "told", answer });
  }

  private send(event: object): void {
    this.connection.send(JSON.stringify(event));
  }
}

type Asked =
  | { type: "ask"; question: string; text: string; files: readonly Attached[] }
  | { type: "edit"; message: string; question: string; text: string; files: readonly Attached[] }
  | { type: "retry"; message: string };

function isAtServer(message: Message): boolean {
  return isUnderWay(message) && message.response !== undefined;
}
