// Eight questions at once, to see how they share the steps. No conversation keeps them.

import { signal } from "@preact/signals";
import { newId } from "../chat/id";
import type { Connection, ServerEvent } from "../server/connection";

export interface Part {
  readonly question: string;
  readonly text: string;
  readonly state: "waiting" | "growing" | "done" | "failed";
}

export class Eight {
  readonly parts = signal<readonly Part[]>([]);
  private names: string[] = [];

  constructor(private readonly connection: Connection) {}

  get isRunning(): boolean {
    return this.parts.value.some(({ state }) => state === "waiting" || state === "growing");
  }

  ask(questions: readonly string[]): void {
    if (!this.connection.isOpen || this.isRunning) return;
    this.names = questions.map(() => newId());
    this.parts.value = questions.map((question) => ({ question, text: "", state: "waiting" }));
    questions.forEach((input, index) => {
      const stream_id = this.names[index];
      const message = { type: "response.create", stream_id, input, store: false, max_output_tokens: 96 };
      this.connection.send(JSON.stringify(message));
    });
  }

  has(stream: string): boolean {
    return this.names.includes(stream);
  }

  received(event: ServerEvent): void {
    const stream = String(event["stream_id"]);
    if (event.type === "response.output_text.delta") {
      this.change(stream, ({ text }) => ({ text: text + String(event["delta"]), state: "growing" }));
    } else if (event.type === "response.completed" || event.type === "response.incomplete") {
      this.change(stream, () => ({ state: "done" }));
    } else if (event.type === "response.failed" || event.type === "error") {
      const { message } = (event["error"] ?? { message: "" }) as { message: string };
      this.change(stream, ({ text }) => ({ text: text || message, state: "failed" }));
    }
  }

  // The connection is lost, and these answers with it.
  lost(): void {
    this.parts.value = this.parts.value.map((part) =>
      part.state === "done" || part.state === "failed" ? part : { ...part, state: "failed" },
    );
  }

  private change(stream: string, change: (part: Part) => Partial<Part>): void {
    const index = this.names.indexOf(stream);
    this.parts.value = this.parts.value.map((part, at) => (at === index ? { ...part, ...change(part) } : part));
  }
}
