// What the server says of itself: whether it is there, which model it has, how far a load is.

import { computed, signal } from "@preact/signals";
import type { Chats } from "../chat/chats";
import { Eight } from "../inside/eight";
import { Inside } from "../inside/inside";
import { Answers } from "./answers";
import { Connection } from "./connection";
import type { ServerEvent } from "./connection";
import type { LoadProgress } from "./load";

const HEALTH_INTERVAL_MS = 10_000;
const HEALTH_TIMEOUT_MS = 5000;
const LONG_HIDDEN_MS = 30_000;

export interface ModelState {
  model: string | null;
  status: string;
  error: string | null;
}

interface Health {
  can_switch: boolean;
  status: string;
  waits_for?: string | null;
  max_context?: number;
  chat_template?: boolean;
  device?: { name: string; software: boolean } | null;
}

export type Link = "connecting" | "open" | "silent" | "barred";

export class Session {
  readonly link = signal<Link>("connecting");
  // What is known now, null where that is nothing: a server that has gone or hangs may be about to change it.
  readonly model = computed(() => (this.link.value === "open" ? this.toldModel.value : null));
  readonly load = signal<LoadProgress | null>(null);
  readonly health = signal<Health | null>(null);
  readonly keyWanted = signal<{ hadKey: boolean } | null>(null);
  readonly connection: Connection;
  readonly answers: Answers;
  readonly inside: Inside;
  readonly eight: Eight;
  private readonly toldModel = signal<ModelState | null>(null);
  private healthTurn = 0;
  private lastLoad: LoadProgress | null = null; // also while nobody looks
  private hiddenAt = 0; // ms since 1970

  constructor(chats: Chats) {
    this.connection = new Connection({
      opened: () => {
        this.link.value = "open";
        this.keyWanted.value = null;
        this.answers.connected();
        this.inside.connected();
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
    this.answers = new Answers(chats, this.connection);
    this.inside = new Inside(this.connection);
    this.eight = new Eight(this.connection);
  }

  start(): void {
    this.connection.start();
    document.addEventListener("visibilitychange", () => {
      this.visibilityChanged();
    });
    setInterval(() => {
      if (!document.hidden && this.connection.isOpen) void this.readHealth();
    }, HEALTH_INTERVAL_MS);
  }

  setKey(key: string): void {
    this.keyWanted.value = null;
    this.link.value = "connecting";
    this.connection.setKey(key);
  }

  // A connection may be dead after a sleep without anybody noticing, and answers can be taken up over a new one.
  private visibilityChanged(): void {
    if (document.hidden) this.hiddenAt = Date.now();
    else this.load.value = this.lastLoad;
    if (!document.hidden && this.answers.isAnyGrowing && Date.now() - this.hiddenAt > LONG_HIDDEN_MS) this.connection.drop();
  }

  private received(event: ServerEvent): void {
    if (this.link.value === "silent") this.link.value = "open";
    this.inside.saw(event);
    if (event.type === "unicorn.model") this.modelChanged(event as unknown as ModelState);
    else if (event.type === "unicorn.load.progress") this.progressed(event as unknown as LoadProgress);
    else if (event.type === "unicorn.steps") this.inside.received(event);
    else if (this.eight.has(String(event["stream_id"]))) this.eight.received(event);
    else if (event.type === "error") this.refused(event);
    else this.answers.received(event);
  }

  private refused(event: ServerEvent): void {
    const { code, message } = event["error"] as { code: string | null; message: string };
    if (code === "too_many_watchers") this.inside.refused(message);
    else this.answers.refused(event);
  }

  private modelChanged({ model, status, error }: ModelState): void {
    this.toldModel.value = { model, status, error };
    this.load.value = this.lastLoad = null;
    void this.readHealth();
  }

  private progressed(progress: LoadProgress): void {
    if (progress.done) return;
    this.lastLoad = progress;
    if (!document.hidden) this.load.value = progress;
  }

  private closed(): void {
    this.answers.disconnected();
    this.eight.lost();
    if (this.link.value !== "barred") this.link.value = "connecting";
    this.toldModel.value = this.load.value = this.health.value = this.lastLoad = null;
  }

  private async readHealth(): Promise<void> {
    const turn = ++this.healthTurn;
    try {
      const response = await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(HEALTH_TIMEOUT_MS) });
      const health = (await response.json()) as Health;
      if (turn !== this.healthTurn || !this.connection.isOpen) return;
      this.health.value = health;
      this.answers.dismissAll();
      if (this.link.value === "silent") this.link.value = "open";
    } catch {
      // A server that hangs keeps its connections open.
      if (turn !== this.healthTurn || this.link.value !== "open") return;
      this.link.value = "silent";
      this.answers.speed.value = "";
    }
  }
}
