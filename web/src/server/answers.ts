// The answers that grow in this tab: what asks for them, and the server's events, which become those of conversations.
// An answer goes on at the server when its listener goes, and is taken up again by whichever tab is there.

import { signal } from "@preact/signals";
import { isCallDelta, withCallEvent } from "../chat/calls";
import type { Call } from "../chat/calls";
import type { Chats } from "../chat/chats";
import type { Attached } from "../chat/files";
import { newId } from "../chat/id";
import { isUnderWay, sentFor, trimmedStart } from "../chat/tree";
import type { ChatEvent, Message } from "../chat/tree";
import { strings } from "../strings";
import type { Connection, ServerEvent } from "./connection";
import { hold } from "./locks";

const MAX_MESSAGE_BYTES = 4 << 20; // what the server takes as one message
const DELTA_INTERVAL_MS = 25; // text that comes in this time is shown at once
const JSON_FORMATS = new Set(["json_object", "json_schema"]);
const NOT_THERE = new Set(["response_not_found", "events_not_kept"]);

interface ResponseObject {
  id: string;
  model: string;
  status: string;
  text?: { format?: { type: string } };
  error?: { message: string } | null;
  usage?: { output_tokens: number; total_tokens: number; input_tokens_details?: { cached_tokens: number } } | null;
}

interface Stream {
  chat: string;
  response: string | null; // its name at the server, once that is known
  received: number; // number of the last event whose text is there; -1 before that
  text: string; // that has come and is not shown
  calls: readonly Call[];
  hasNewCalls: boolean; // that are not shown
  tokens: number; // since it began, or was taken up
  askedAt: number; // ms, as of the next two
  startedAt: number;
  thoughtAt: number; // when its reasoning had ended; 0 before that
  isWhole: boolean; // followed from its beginning, so that it can be timed
  timer: ReturnType<typeof setTimeout> | undefined;
  release: () => void;
}

export class Answers {
  readonly speed = signal("");
  readonly problem = signal(""); // of no answer
  readonly stopping = signal<ReadonlySet<string>>(new Set());
  private readonly growing = signal<ReadonlySet<string>>(new Set());
  private readonly streams = new Map<string, Stream>();
  private readonly awaited = new Set<string>(); // answers that another tab has, until that lets go

  constructor(
    private readonly chats: Chats,
    private readonly connection: Connection,
  ) {}

  // Whether this tab follows an answer.
  isGrowing(answer: string): boolean {
    return this.growing.value.has(answer);
  }

  get isAnyGrowing(): boolean {
    return this.streams.size > 0;
  }

  // Asks, unless what there is to send is too much; returns whether it was asked.
  ask(text: string, files: readonly Attached[] = []): boolean {
    return this.begin((answer, at) => ({ type: "ask", question: newId(), answer, text, files, at }));
  }

  retry(message: string): boolean {
    return this.begin((answer, at) => ({ type: "retry", message, answer, at }));
  }

  edit(message: string, text: string): boolean {
    return this.begin((answer, at) => ({ type: "edit", message, question: newId(), answer, text, at }));
  }

  // Leaves out the oldest turns of what an answer was told, and asks again.
  trimAndRetry(answer: string): void {
    const start = trimmedStart(this.chats.current.value, answer);
    if (start === null) return;
    this.chats.dispatch(this.chats.currentId.value, { type: "trim", start });
    this.retry(answer);
  }

  stop(answer: string): void {
    const stream = this.streams.get(answer);
    if (!stream || this.stopping.value.has(answer)) return;
    if (!this.connection.isOpen) {
      this.end({ type: "stopped", answer });
      return;
    }
    this.stopping.value = new Set([...this.stopping.value, answer]);
    const which = stream.response === null ? { stream_id: answer } : { response_id: stream.response };
    this.send({ type: "response.cancel", ...which });
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
    for (const chat of this.chats.all.value.keys()) this.adopt(chat);
  }

  // The connection is lost. Of an answer that has not begun nobody knows what became of it.
  disconnected(): void {
    for (const [answer, stream] of [...this.streams]) {
      if (stream.response === null) this.end({ type: "lost", answer });
      else this.show(answer, stream);
    }
    this.stopping.value = new Set();
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
        stream.response = response.id;
        stream.received = number;
        this.chats.dispatch(stream.chat, {
          type: "created", answer, model: response.model, response: response.id, received: number,
          isJson: JSON_FORMATS.has(response.text?.format?.type ?? ""),
        });
        void this.chats.flush(); // so that a page that is loaded anew finds it
        break;
      case "response.output_text.delta":
        this.grew(answer, stream, String(event["delta"]), number);
        break;
      case "response.completed":
        this.completed(answer, response, false);
        break;
      case "response.incomplete":
        if (response.status === "cancelled") this.end({ type: "stopped", answer });
        else this.completed(answer, response, true);
        break;
      case "response.failed":
        this.end({ type: "failed", answer, error: response.error?.message ?? strings.unknownError });
        break;
      default:
        this.called(answer, stream, event, number);
    }
  }

  refused(event: ServerEvent): void {
    const error = event["error"] as { message: string; code: string | null };
    const answer = String(event["stream_id"]);
    const isGone = NOT_THERE.has(error.code ?? "");
    if (!this.streams.has(answer)) {
      if (!isGone) this.problem.value = error.message; // else it ended while "stop" was on its way
    } else if (isGone) {
      this.end({ type: "lost", answer });
    } else {
      this.end({ type: "failed", answer, error: error.message, ...(error.code && { code: error.code }) });
    }
  }

  private begin(event: (answer: string, at: number) => ChatEvent): boolean {
    if (!this.connection.isOpen) return false;
    const before = this.chats.current.value;
    const answer = newId();
    this.chats.dispatch(before.id, event(answer, Date.now()));
    const input = sentFor(this.chats.current.value, answer);
    const { values } = this.chats.current.value.settings;
    const asked = { background: true, reasoning_format: "none", ...values, input }; // thoughts come with their marks
    const message = JSON.stringify({ type: "response.create", stream_id: answer, ...asked });
    const numBytes = new TextEncoder().encode(message).length;
    if (numBytes > MAX_MESSAGE_BYTES) {
      this.chats.add([before]);
      this.problem.value = strings.tooLarge(numBytes, MAX_MESSAGE_BYTES);
      return false;
    }
    this.problem.value = "";
    this.speed.value = "";
    const { release } = hold(answer);
    this.follow(answer, { ...newStream(before.id, release), isWhole: true });
    this.connection.send(message);
    void this.chats.flush();
    return true;
  }

  private async adoptOne(chat: string, answer: string): Promise<void> {
    this.awaited.add(answer);
    const { held, release } = hold(answer);
    await held;
    this.awaited.delete(answer);
    // What the tab that had it has written last.
    const found = (await this.chats.kept(chat))?.messages.get(answer);
    if (!found || !isAtServer(found) || this.streams.has(answer)) {
      release();
      return;
    }
    await this.chats.reread(chat);
    const stream = newStream(chat, release);
    stream.response = found.response ?? null;
    stream.received = found.received ?? -1;
    stream.calls = found.calls ?? [];
    this.follow(answer, stream);
    if (this.connection.isOpen) this.resume(answer, stream);
  }

  private follow(answer: string, stream: Stream): void {
    this.streams.set(answer, stream);
    this.growing.value = new Set(this.streams.keys());
  }

  private resume(answer: string, stream: Stream): void {
    if (stream.response === null) return;
    stream.isWhole = false;
    stream.tokens = 0;
    this.send({
      type: "unicorn.resume",
      stream_id: answer,
      response_id: stream.response,
      ...(stream.received >= 0 && { starting_after: stream.received }),
    });
  }

  private grew(answer: string, stream: Stream, delta: string, number: number): void {
    if (number <= stream.received) return;
    count(stream);
    if (!stream.thoughtAt && delta.includes("</think>")) stream.thoughtAt = performance.now();
    stream.text += delta;
    stream.received = number;
    this.showSoon(answer, stream);
  }

  private called(answer: string, stream: Stream, event: ServerEvent, number: number): void {
    const calls = number > stream.received ? withCallEvent(stream.calls, event) : stream.calls;
    if (calls === stream.calls) return;
    if (isCallDelta(event)) count(stream);
    stream.calls = calls;
    stream.hasNewCalls = true;
    stream.received = number;
    this.showSoon(answer, stream);
  }

  private showSoon(answer: string, stream: Stream): void {
    stream.timer ??= setTimeout(() => {
      this.show(answer, stream);
    }, DELTA_INTERVAL_MS);
  }

  private show(answer: string, stream: Stream): void {
    clearTimeout(stream.timer);
    stream.timer = undefined;
    const { text, calls, hasNewCalls, received } = stream;
    if (!text && !hasNewCalls) return;
    this.chats.dispatch(stream.chat, { type: "delta", answer, text, received, ...(hasNewCalls && { calls }) });
    stream.text = "";
    stream.hasNewCalls = false;
    const rate = tokensPerSecond(stream, stream.tokens);
    if (rate !== null) this.speed.value = strings.speed(rate);
  }

  private completed(answer: string, response: ResponseObject, isTruncated: boolean): void {
    const stream = this.streams.get(answer);
    const usage = response.usage;
    const rate = stream?.isWhole && usage ? tokensPerSecond(stream, usage.output_tokens) : null;
    const cached = usage?.input_tokens_details?.cached_tokens;
    const statistics = usage && {
      tokens: usage.output_tokens,
      contextTokens: usage.total_tokens,
      tokensPerSecond: rate,
      ...(stream?.isWhole && stream.startedAt && { firstSeconds: (stream.startedAt - stream.askedAt) / 1000 }),
      ...(stream?.isWhole && stream.thoughtAt && { thoughtSeconds: (stream.thoughtAt - stream.startedAt) / 1000 }),
      ...(cached && { cachedTokens: cached }),
    };
    this.end({ type: "done", answer, isTruncated, ...(statistics && { statistics }) });
    if (rate !== null) this.speed.value = strings.speed(rate);
  }

  private end(event: ChatEvent & { answer: string }): void {
    const stream = this.streams.get(event.answer);
    if (!stream) return;
    this.show(event.answer, stream);
    this.streams.delete(event.answer);
    this.growing.value = new Set(this.streams.keys());
    this.stopping.value = new Set([...this.stopping.value].filter((answer) => answer !== event.answer));
    this.chats.dispatch(stream.chat, event);
    void this.chats.flush().then(() => {
      stream.release();
      if (stream.response !== null) this.forget(stream.response);
    });
  }

  // The server need not keep what this browser has.
  private forget(response: string): void {
    const { headers } = this.connection;
    fetch(`/v1/responses/${encodeURIComponent(response)}`, { method: "DELETE", headers, keepalive: true }).catch(
      () => undefined, // it goes there by itself after a while
    );
  }

  private send(event: object): void {
    this.connection.send(JSON.stringify(event));
  }
}

function newStream(chat: string, release: () => void): Stream {
  return {
    chat, response: null, received: -1, text: "", calls: [], hasNewCalls: false, tokens: 0, askedAt: performance.now(), startedAt: 0, thoughtAt: 0,
    isWhole: false, timer: undefined, release,
  };
}

function count(stream: Stream): void {
  if (!stream.tokens) stream.startedAt = performance.now();
  stream.tokens += 1;
}

function isAtServer(message: Message): boolean {
  return isUnderWay(message) && message.response !== undefined;
}

function tokensPerSecond(stream: Stream, tokens: number): number | null {
  const seconds = (performance.now() - stream.startedAt) / 1000;
  // The clock starts with the first token, so one token less has come in that time.
  return stream.tokens && tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null;
}
