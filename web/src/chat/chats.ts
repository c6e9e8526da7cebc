// The conversations of this browser: what is shown, and what is kept. A change is shown at once and written a moment
// later, in the order of the changes; where a conversation can't be written, the others are, and it is tried again.

import { computed, signal } from "@preact/signals";
import { newId } from "./id";
import { isAnySet } from "./settings";
import { merged } from "./merge";
import { problemOf } from "./storage";
import type { Storage, StorageProblem } from "./storage";
import { emptyConversation, isUnderWay, pathTo, reduce } from "./tree";
import type { ChatEvent, Conversation } from "./tree";

const WRITE_DELAY_MS = 300;
const RETRY_DELAY_MS = 10_000;
const SLOW_MS = 5000; // from which on it is said that nothing is kept meanwhile

export class Chats {
  readonly all = signal<ReadonlyMap<string, Conversation>>(new Map());
  readonly currentId = signal("");
  readonly current = computed(() => this.all.value.get(this.currentId.value) ?? emptyConversation("", 0));
  readonly path = computed(() => pathTo(this.current.value, this.current.value.leaf));
  // With something in them, the last one first.
  readonly listed = computed(() =>
    [...this.all.value.values()].filter(isKept).sort((one, other) => other.changed - one.changed),
  );
  readonly problem = signal<StorageProblem | null>(null); // of what keeps them
  readonly numDamaged = signal(0); // records that could not be read as they are

  private readonly written = new Map<string, Conversation>();
  private storage: Storage | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private retryTimer: ReturnType<typeof setTimeout> | undefined;
  private writing = Promise.resolve();

  constructor(private readonly onWritten: (id: string) => void = () => undefined) {}

  // Reads what is kept, and keeps from now on; what there is already stays. An answer of which the server may know nothing
  // is lost, unless another tab waits for it.
  async load(storage: Storage, growing: ReadonlySet<string>): Promise<void> {
    const { chats, numDamaged } = await storage.all();
    this.storage = storage;
    for (const chat of chats) this.written.set(chat.id, chat);
    const kept = chats.map((chat) => [chat.id, withoutLost(chat, growing)] as const);
    this.all.value = new Map([...kept, ...this.all.value]);
    this.numDamaged.value = numDamaged;
    this.problem.value = null;
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

  // Another tab has written a conversation.
  reread(id: string): Promise<void> {
    return this.inTurn(() => this.readAgain(id));
  }

  // Writes now what was to be written a moment later.
  flush(): Promise<void> {
    clearTimeout(this.timer);
    clearTimeout(this.retryTimer);
    this.timer = undefined;
    return this.inTurn(() => this.write());
  }

  // One thing at a time, so that nothing is read of which a half is written.
  private inTurn(work: () => Promise<void>): Promise<void> {
    this.writing = this.writing.then(async () => {
      const slow = setTimeout(() => { this.problem.value = { kind: "slow", text: "" }; }, SLOW_MS);
      try {
        await work();
        if (this.problem.value?.kind === "slow" && this.storage) this.problem.value = null;
      } catch (error) {
        this.problem.value = problemOf(error);
      } finally {
        clearTimeout(slow);
      }
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
    const gone = [...this.written.keys()].filter((id) => !all.has(id));
    let problem: StorageProblem | null = null;
    // What is deleted first: it makes room.
    for (const id of [...gone, ...all.keys()]) {
      try {
        if (await this.writeOne(this.storage, id, all.get(id))) this.onWritten(id);
      } catch (error) {
        problem ??= problemOf(error);
      }
    }
    this.problem.value = problem;
    if (problem) this.retryTimer = setTimeout(() => void this.flush(), RETRY_DELAY_MS);
  }

  // Returns whether there was anything to write.
  private async writeOne(storage: Storage, id: string, chat: Conversation | undefined): Promise<boolean> {
    const old = this.written.get(id);
    if (chat === old || (chat && !old && !isKept(chat))) return false;
    if (chat) {
      const isWhole = await storage.put(chat, old);
      this.written.set(id, chat);
      if (!isWhole) await this.readAgain(id);
    } else {
      await storage.remove(id);
      this.written.delete(id);
    }
    return true;
  }

  private async readAgain(id: string): Promise<void> {
    if (!this.storage) return;
    const theirs = await this.storage.get(id);
    const mine = this.all.value.get(id);
    const base = this.written.get(id);
    if (!theirs && base) this.forget(id);
    if (!theirs) return;
    this.written.set(id, theirs);
    if (mine) this.all.value = new Map(this.all.value).set(id, merged(base, mine, theirs));
    else if (!base) this.all.value = new Map(this.all.value).set(id, theirs);
  }

  // Another tab has deleted a conversation; what was being written in it stays, in a new one.
  private forget(id: string): void {
    this.written.delete(id);
    const chat = this.all.value.get(id);
    this.all.value = new Map([...this.all.value].filter(([key]) => key !== id));
    if (this.currentId.value !== id) return;
    this.open(null);
    if (!chat) return;
    this.dispatch(this.currentId.value, { type: "draft", text: chat.draft });
    this.dispatch(this.currentId.value, { type: "draftFiles", files: chat.draftFiles });
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
