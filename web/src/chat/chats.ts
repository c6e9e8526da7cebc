// The conversations of this browser: what is shown, and what is kept. A change is shown at once and written a moment
// later, in the order of the changes.

import { computed, signal } from "@preact/signals";
import { newId } from "./id";
import { isAnySet } from "./settings";
import type { Storage } from "./storage";
import { emptyConversation, isUnderWay, pathTo, reduce } from "./tree";
import type { ChatEvent, Conversation } from "./tree";

const WRITE_DELAY_MS = 300;

export class Chats {
  readonly all = signal<ReadonlyMap<string, Conversation>>(new Map());
  readonly currentId = signal("");
  readonly current = computed(() => this.all.value.get(this.currentId.value) ?? emptyConversation("", 0));
  readonly path = computed(() => pathTo(this.current.value, this.current.value.leaf));
  // With something in them, the last one first.
  readonly listed = computed(() =>
    [...this.all.value.values()].filter(isKept).sort((one, other) => other.changed - one.changed),
  );
  readonly storageError = signal("");

  private readonly written = new Map<string, Conversation>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private writing = Promise.resolve();

  constructor(
    private readonly storage: Storage | null,
    private readonly onWritten: (id: string) => void = () => undefined,
  ) {}

  // Reads what is kept. An answer that had not begun when its page ended is lost, unless another tab waits for it.
  async load(growing: ReadonlySet<string>): Promise<void> {
    const kept = (await this.storage?.all()) ?? [];
    for (const chat of kept) this.written.set(chat.id, chat);
    this.all.value = new Map(kept.map((chat) => [chat.id, withoutLost(chat, growing)]));
    this.writeSoon();
  }

  // Shows a conversation, or a new one.
  open(id: string | null): void {
    const chat = (id !== null && this.all.value.get(id)) || emptyConversation(newId(), Date.now());
    this.set(chat);
    this.currentId.value = chat.id;
  }

  dispatch(id: string, event: ChatEvent): void {
    const chat = this.all.value.get(id);
    if (!chat) return;
    const next = reduce(chat, event);
    if (next !== chat) this.set(next);
  }

  add(chats: readonly Conversation[]): void {
    this.all.value = new Map([...this.all.value, ...chats.map((chat) => [chat.id, chat] as const)]);
    this.writeSoon();
  }

  // Brings back what `remove` took away, into what is there by now.
  restore(removed: Conversation): void {
    const there = this.all.value.get(removed.id);
    const messages = [...removed.messages.values()];
    const back = { messages, order: [...removed.messages.keys()], leaf: removed.leaf, left: null };
    this.set(there ? reduce(there, { type: "restore", removed: back }) : removed);
  }

  // Takes a conversation away and returns it, for `restore` to bring it back.
  remove(id: string): Conversation | undefined {
    const chat = this.all.value.get(id);
    this.all.value = new Map([...this.all.value].filter(([key]) => key !== id));
    if (this.currentId.value === id) this.open(null);
    this.writeSoon();
    return chat;
  }

  // What is kept of a conversation; where nothing can be kept, what there is.
  async kept(id: string): Promise<Conversation | undefined> {
    return this.storage ? ((await this.storage.get(id)) ?? undefined) : this.all.value.get(id);
  }

  // Another tab has written a conversation.
  async reread(id: string): Promise<void> {
    const chat = await this.kept(id);
    const next = new Map(this.all.value);
    if (chat) {
      const draft = next.get(id)?.draft ?? chat.draft; // each tab has its own until it is written
      next.set(id, { ...chat, draft });
      this.written.set(id, chat);
    } else {
      next.delete(id);
      this.written.delete(id);
    }
    this.all.value = next;
    if (!chat && this.currentId.value === id) this.open(null);
  }

  // Writes now what was to be written a moment later.
  flush(): Promise<void> {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.writing = this.writing.then(() => this.write()).catch((error: unknown) => {
      this.storageError.value = error instanceof Error ? error.message : String(error);
    });
    return this.writing;
  }

  private set(chat: Conversation): void {
    this.all.value = new Map(this.all.value).set(chat.id, chat);
    this.writeSoon();
  }

  private writeSoon(): void {
    this.timer ??= setTimeout(() => void this.flush(), WRITE_DELAY_MS);
  }

  private async write(): Promise<void> {
    if (!this.storage) return;
    const all = this.all.value;
    for (const [id, chat] of all) {
      const old = this.written.get(id);
      if (chat === old || (!old && !isKept(chat))) continue;
      await this.storage.put(chat, old);
      this.written.set(id, chat);
      this.onWritten(id);
    }
    for (const [id, old] of this.written) {
      if (all.has(id)) continue;
      await this.storage.remove(old);
      this.written.delete(id);
      this.onWritten(id);
    }
  }
}

function isKept(chat: Conversation): boolean {
  return chat.messages.size > 0 || chat.draft !== "" || chat.draftFiles.length > 0 || isAnySet(chat.settings);
}

function withoutLost(chat: Conversation, growing: ReadonlySet<string>): Conversation {
  return [...chat.messages.values()]
    .filter((message) => isUnderWay(message) && message.response === undefined && !growing.has(message.id))
    .reduce((left, { id }) => reduce(left, { type: "lost", answer: id }), chat);
}
