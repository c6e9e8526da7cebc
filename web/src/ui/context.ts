// What every part of the page works on.

import { signal } from "@preact/signals";
import type { Signal } from "@preact/signals";
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Chats } from "../chat/chats";
import type { Eight } from "../inside/eight";
import type { Inside } from "../inside/inside";
import type { Answers } from "../server/answers";
import type { Session } from "../server/session";

export interface Page {
  readonly chats: Chats;
  readonly session: Session;
  readonly answers: Answers;
  readonly inside: Inside;
  readonly eight: Eight;
  readonly notice: Notice;
  readonly edited: Signal<string | null>; // the question whose text is being changed
}

const PageContext = createContext<Page | null>(null);
export const PageProvider = PageContext.Provider;

export function usePage(): Page {
  const page = useContext(PageContext);
  if (!page) throw new Error("a part of the page stands outside of it");
  return page;
}

const SHOWN_MS = 10_000;

// A sentence at the end of the window, with what takes back that of which it tells.
export class Notice {
  readonly current = signal<{ text: string; undo: (() => void) | null } | null>(null);
  private timer: ReturnType<typeof setTimeout> | undefined;

  show(text: string, undo: (() => void) | null = null): void {
    clearTimeout(this.timer);
    this.current.value = { text, undo };
    this.timer = setTimeout(() => {
      this.current.value = null;
    }, SHOWN_MS);
  }

  undo(): void {
    const undo = this.current.value?.undo;
    this.current.value = null;
    undo?.();
  }
}
