// One answer as it comes: what of it is not shown yet, and how fast it is made.

import { isCallDelta, withCallEvent } from "../chat/calls";
import type { Call } from "../chat/calls";
import type { Statistics } from "../chat/tree";
import type { ServerEvent } from "./connection";

const LEAST_RATE_SECONDS = 0.01; // tokens that come at once tell nothing of how fast they were made

export interface Usage {
  output_tokens: number;
  total_tokens: number;
  input_tokens_details?: { cached_tokens: number };
}

export interface Piece {
  readonly text: string;
  readonly received: number;
  readonly calls?: readonly Call[];
}

export class Stream {
  isBegun = false; // as far as is known
  received = -1; // number of the last event whose text is there; -1 before that
  timer: ReturnType<typeof setTimeout> | undefined; // until what has come is shown
  private text = ""; // that has come and is not shown
  private hasNewCalls = false; // that are not shown
  private tokens = 0; // since it began, or was taken up
  private readonly askedAt = performance.now(); // ms, as of the next two
  private startedAt = 0;
  private thoughtAt = 0; // when its reasoning had ended; 0 before that

  constructor(
    readonly chat: string,
    readonly response: string, // its name at the server
    readonly release: () => void,
    private isWhole: boolean, // followed from its beginning, so that it can be timed
    private calls: readonly Call[] = [],
  ) {}

  takenUp(): void {
    this.isWhole = false;
    this.tokens = 0;
  }

  // Takes a piece of text; returns whether it is a new one.
  grew(delta: string, number: number): boolean {
    if (number <= this.received) return false;
    this.count();
    if (!this.thoughtAt && delta.includes("</think>")) this.thoughtAt = performance.now();
    this.text += delta;
    this.received = number;
    return true;
  }

  // Takes what an event says of calls; returns whether that is new.
  called(event: ServerEvent, number: number): boolean {
    const calls = number > this.received ? withCallEvent(this.calls, event) : this.calls;
    if (calls === this.calls) return false;
    if (isCallDelta(event)) this.count();
    this.calls = calls;
    this.hasNewCalls = true;
    this.received = number;
    return true;
  }

  // What has come and is not shown, which it then is; null where that is nothing.
  take(): Piece | null {
    const { text, calls, hasNewCalls, received } = this;
    if (!text && !hasNewCalls) return null;
    this.text = "";
    this.hasNewCalls = false;
    return { text, received, ...(hasNewCalls && { calls }) };
  }

  tokensPerSecond(tokens = this.tokens): number | null {
    const seconds = (performance.now() - this.startedAt) / 1000;
    // The clock starts with the first token, so one token less has come in that time.
    return this.tokens && tokens > 1 && seconds > LEAST_RATE_SECONDS ? (tokens - 1) / seconds : null;
  }

  statistics(usage: Usage): Statistics {
    const { isWhole, startedAt, askedAt, thoughtAt } = this;
    const cached = usage.input_tokens_details?.cached_tokens;
    return {
      tokens: usage.output_tokens,
      contextTokens: usage.total_tokens,
      tokensPerSecond: isWhole ? this.tokensPerSecond(usage.output_tokens) : null,
      ...(isWhole && startedAt && { firstSeconds: (startedAt - askedAt) / 1000 }),
      ...(isWhole && thoughtAt && { thoughtSeconds: (thoughtAt - startedAt) / 1000 }),
      ...(cached && { cachedTokens: cached }),
    };
  }

  private count(): void {
    if (!this.tokens) this.startedAt = performance.now();
    this.tokens += 1;
  }
}
