// What belongs to this tab: texts that it keeps over a reload, and word from the others. A browser may refuse either, for this
// page or for all; then the texts are kept as long as the page is there, and the other tabs are not heard of.

const texts = new Map<string, string>();

export function keep(key: string, text: string | null): void {
  if (text === null) texts.delete(key);
  else texts.set(key, text);
  try {
    if (text === null) sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, text);
  } catch {
    forget(key); // what was there before it is not what it is now
  }
}

export function kept(key: string): string | null {
  return texts.get(key) ?? stored(key);
}

function stored(key: string): string | null {
  try {
    return sessionStorage.getItem(key);
  } catch {
    return null;
  }
}

function forget(key: string): void {
  try {
    sessionStorage.removeItem(key);
  } catch {
    return; // where nothing is kept nothing is to be forgotten
  }
}

export interface Tabs {
  readonly tell: (chat: string) => void;
  readonly listen: (heard: (chat: string) => void) => void;
}

// The other tabs, which are told of each conversation that is written.
export function otherTabs(name = "unicorn-chats"): Tabs {
  try {
    const channel = new BroadcastChannel(name);
    return {
      tell: (chat) => { channel.postMessage(chat); },
      listen: (heard) => {
        channel.addEventListener("message", ({ data }: MessageEvent<string>) => { heard(data); });
      },
    };
  } catch {
    return { tell: () => undefined, listen: () => undefined };
  }
}
