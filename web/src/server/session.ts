// What the server says of itself, and the answers that it gives: its events become those of conversations.

import { signal } from "@preact/signals";
import type { Chats } from "../chat/chats";
import { newId } from "../chat/id";
import { sentFor, trimmedStart } from "../chat/tree";
import type { ChatEvent } from "../chat/tree";
import { strings } from "../strings";
import { Connection } from "./connection";
import type { ServerEvent } from "./connection";
import { loadNumbers } from "./load";
import type { LoadProgress } from "./load";

const MAX_MESSAGE_BYTES = 4 << 20; // what the server takes as one message
const HEALTH_INTERVAL_MS = 10_000;
const HEALTH_TIMEOUT_MS = 5000;
const DELTA_INTERVAL_MS = 25; // text that comes in this time is shown at once

export interface ModelState {
  model: string | null;
  status: string;
  error: string | null;
}

interface Health {
  can_switch: boolean;
  status: string;
  max_context?: number;
  device?: { name: string; software: boolean } | null;
}

interface ResponseObject {
  model: string;
  status: string;
  error?: { message: string } | null;
  usage?: { output_tokens: number; total_tokens: number } | null;
}

// An answer under way.
interface Stream {
  chat: string;
  text: string; // that has come and is not shown
  tokens: number;
  startedAt: number;
  timer: ReturnType<typeof setTimeout> | undefined;
  release: () => void;
}

export type Link = "connecting" | "open" | "silent" | "barred";

export class Session {
  readonly link = signal<Link>("connecting");
  readonly model = signal<ModelState | null>(null); // null = nobody knows
  readonly load = signal<{ share: number; numbers: string } | null>(null);
  readonly health = signal<Health | null>(null);
  readonly speed = signal("");
  readonly problem = signal(""); // of no answer
  readonly keyWanted = signal<{ hadKey: boolean } | null>(null);
  readonly stopping = signal<ReadonlySet<string>>(new Set());
  readonly connection: Connection;
  private readonly streams = new Map<string, Stream>();
  private healthTurn = 0;

  constructor(private readonly chats: Chats) {
    this.connection = new Connection({
      opened: () => {
        this.link.value = "open";
        void this.readHealth();
      },
      closed: () => {
        this.closed();
      },
      received: (event) => {
        this.received(event);
      },
      unauthorized: (hadKey) => {
        this.link.value = "barred";
        this.keyWanted.value = { hadKey };
      },
    });
  }

  start(): void {
    this.connection.start();
    setInterval(() => {
      if (!document.hidden && this.connection.isOpen) void this.readHealth();
    }, HEALTH_INTERVAL_MS);
  }

  isGrowing(answer: string): boolean {
    return this.streams.has(answer);
  }

  setKey(key: string): void {
    this.keyWanted.value = null;
    this.link.value = "connecting";
    this.connection.setKey(key);
  }

  // Asks, unless what there is to send is too much; returns whether it was asked.
  ask(text: string): boolean {
    return this.begin((answer, at) => ({ type: "ask", question: newId(), answer, text, at }));
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
    if (!this.streams.has(answer) || this.stopping.value.has(answer)) return;
    this.stopping.value = new Set([...this.stopping.value, answer]);
    this.connection.send(JSON.stringify({ type: "response.cancel", stream_id: answer }));
  }

  private begin(event: (answer: string, at: number) => ChatEvent): boolean {
    if (this.link.value !== "open") return false;
    const before = this.chats.current.value;
    const answer = newId();
    this.chats.dispatch(before.id, event(answer, Date.now()));
    const input = sentFor(this.chats.current.value, answer);
    const message = JSON.stringify({ type: "response.create", stream_id: answer, input, store: false });
    const numBytes = new TextEncoder().encode(message).length;
    if (numBytes > MAX_MESSAGE_BYTES) {
      this.chats.add([before]);
      this.problem.value = strings.tooLarge(numBytes, MAX_MESSAGE_BYTES);
      return false;
    }
    this.problem.value = "";
    this.speed.value = "";
    const release = hold(answer);
    this.streams.set(answer, { chat: before.id, text: "", tokens: 0, startedAt: 0, timer: undefined, release });
    this.connection.send(message);
    void this.chats.flush();
    return true;
  }

  private received(event: ServerEvent): void {
    if (this.link.value === "silent") this.link.value = "open";
    if (event.type === "unicorn.model") this.modelChanged(event as unknown as ModelState);
    else if (event.type === "unicorn.load.progress") this.progressed(event as unknown as LoadProgress);
    else if (event.type === "error") this.refused(event);
    else this.answered(event);
  }

  private modelChanged({ model, status, error }: ModelState): void {
    this.model.value = { model, status, error };
    this.load.value = null;
    void this.readHealth();
  }

  private progressed(progress: LoadProgress): void {
    if (!progress.done) this.load.value = { share: progress.share, numbers: loadNumbers(progress) };
  }

  private refused(event: ServerEvent): void {
    const error = event["error"] as { message: string; code: string | null };
    if (error.code === "response_not_found") return; // it ended while "stop" was on its way
    const answer = String(event["stream_id"]);
    if (!this.streams.has(answer)) this.problem.value = error.message;
    else this.end({ type: "failed", answer, error: error.message, ...(error.code && { code: error.code }) });
  }

  private answered(event: ServerEvent): void {
    const answer = String(event["stream_id"]);
    const stream = this.streams.get(answer);
    if (!stream) return;
    const response = event["response"] as ResponseObject;
    switch (event.type) {
      case "response.created":
        this.chats.dispatch(stream.chat, { type: "created", answer, model: response.model });
        break;
      case "response.output_text.delta":
        this.grew(answer, stream, String(event["delta"]));
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
    }
  }

  private grew(answer: string, stream: Stream, delta: string): void {
    if (!stream.tokens) stream.startedAt = performance.now();
    stream.tokens += 1;
    stream.text += delta;
    stream.timer ??= setTimeout(() => {
      this.show(answer, stream);
    }, DELTA_INTERVAL_MS);
  }

  private show(answer: string, stream: Stream): void {
    clearTimeout(stream.timer);
    stream.timer = undefined;
    if (!stream.text) return;
    this.chats.dispatch(stream.chat, { type: "delta", answer, text: stream.text });
    stream.text = "";
    const rate = tokensPerSecond(stream, stream.tokens);
    if (rate !== null) this.speed.value = strings.speed(rate);
  }

  private completed(answer: string, response: ResponseObject, isTruncated: boolean): void {
    const stream = this.streams.get(answer);
    const usage = response.usage;
    const rate = stream && usage ? tokensPerSecond(stream, usage.output_tokens) : null;
    const statistics = usage && {
      tokens: usage.output_tokens,
      contextTokens: usage.total_tokens,
      tokensPerSecond: rate,
    };
    this.end({ type: "done", answer, isTruncated, ...(statistics && { statistics }) });
    if (rate !== null) this.speed.value = strings.speed(rate);
  }

  private end(event: ChatEvent & { answer: string }): void {
    const stream = this.streams.get(event.answer);
    if (!stream) return;
    this.show(event.answer, stream);
    this.streams.delete(event.answer);
    this.stopping.value = new Set([...this.stopping.value].filter((answer) => answer !== event.answer));
    this.chats.dispatch(stream.chat, event);
    stream.release();
    void this.chats.flush();
  }

  private closed(): void {
    for (const answer of [...this.streams.keys()]) this.end({ type: "lost", answer });
    if (this.link.value !== "barred") this.link.value = "connecting";
    this.model.value = this.load.value = this.health.value = null;
    this.speed.value = "";
  }

  private async readHealth(): Promise<void> {
    const turn = ++this.healthTurn;
    try {
      const response = await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(HEALTH_TIMEOUT_MS) });
      const health = (await response.json()) as Health;
      if (turn !== this.healthTurn || !this.connection.isOpen) return;
      this.health.value = health;
      if (this.link.value === "silent") this.link.value = "open";
    } catch {
      // A server that hangs keeps its connections open.
      if (turn === this.healthTurn && this.link.value === "open") this.link.value = "silent";
    }
  }
}

function tokensPerSecond(stream: Stream, tokens: number): number | null {
  const seconds = (performance.now() - stream.startedAt) / 1000;
  // The clock starts with the first token, so one token less has come in that time.
  return stream.tokens && tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null;
}

// Tells other tabs that an answer grows here, until the function that it returns is called. Without locks, which a page
// over plain HTTP from another machine lacks, a tab that is opened meanwhile takes the answer for lost.
function hold(answer: string): () => void {
  let release = (): void => undefined;
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  // TypeScript has locks everywhere, browsers in secure contexts alone.
  (navigator.locks as LockManager | undefined)?.request(answer, () => released).catch(() => undefined);
  return release;
}

// The answers that grow in any tab.
export async function growing(): Promise<Set<string>> {
  const state = await (navigator.locks as LockManager | undefined)?.query();
  return new Set(state?.held?.flatMap(({ name }) => name ?? []));
}
