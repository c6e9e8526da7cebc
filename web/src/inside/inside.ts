// The inside view: whether it is open, what it has been told, what of that is shown. Nothing is asked for while nobody looks.

import { computed, signal } from "@preact/signals";
import type { Connection, ServerEvent } from "../server/connection";
import { KEPT_MS, NOTHING, withEvent, withSpan } from "./feed";
import type { StepsEvent, View } from "./feed";

const INTERVAL_MS = 100;
const CALM_INTERVAL_MS = 1000; // for who wants less motion

export class Inside {
  readonly isOpen = signal(false);
  readonly view = signal<View>(NOTHING);
  readonly frozen = signal<View | null>(null); // what is looked at while it is paused
  readonly back = signal(0); // ms before the end of that
  readonly problem = signal("");
  readonly shown = computed(() => this.frozen.value ?? this.view.value);
  private isWatching = false;
  private uploaded = { at: 0, bytes: 0 };

  constructor(private readonly connection: Connection) {
    document.addEventListener("visibilitychange", () => {
      this.follow();
    });
  }

  toggle(): void {
    this.isOpen.value = !this.isOpen.value;
    this.resume();
    this.follow();
  }

  pause(): void {
    this.frozen.value = this.view.value;
    this.back.value = 0;
  }

  resume(): void {
    this.frozen.value = null;
    this.back.value = 0;
  }

  scrub(back: number): void {
    if (!this.frozen.value) this.pause();
    this.back.value = Math.min(KEPT_MS, Math.max(0, back));
  }

  received(event: ServerEvent): void {
    this.view.value = withEvent(this.view.value, event as unknown as StepsEvent, performance.now());
  }

  // What this page sees itself, for the lanes beside the engine's.
  saw(event: ServerEvent): void {
    if (!this.isWatching) return;
    const now = performance.now();
    if (event.type === "response.output_text.delta") this.view.value = withSpan(this.view.value, "wire", [now, 0]);
    if (event.type !== "unicorn.load.progress") return;
    const bytes = Number(event["bytes_loaded"]);
    const { at, bytes: before } = this.uploaded;
    if (bytes > before && at) this.view.value = withSpan(this.view.value, "upload", [at, now - at]);
    this.uploaded = { at: now, bytes };
  }

  refused(message: string): void {
    this.isWatching = false;
    this.problem.value = message;
  }

  connected(): void {
    this.isWatching = false;
    this.follow();
  }

  // Asks for the steps while the view is open and the page is seen.
  private follow(): void {
    const isWanted = this.isOpen.value && !document.hidden;
    if (!this.connection.isOpen || isWanted === this.isWatching) return;
    const interval = matchMedia("(prefers-reduced-motion: reduce)").matches ? CALM_INTERVAL_MS : INTERVAL_MS;
    this.connection.send(JSON.stringify({ type: "unicorn.watch", interval_ms: isWanted ? interval : 0 }));
    this.isWatching = isWanted;
    this.problem.value = "";
    if (!isWanted) this.view.value = NOTHING;
  }
}
