// Which tab follows which answer: whoever has the lock of an answer's name. Without locks, which a page over plain HTTP
// from another machine lacks, and one that may keep nothing, each tab follows what it finds.

export interface Hold {
  readonly held: Promise<void>; // no other tab has it any more
  readonly release: () => void;
}

export function hold(answer: string): Hold {
  let release = (): void => undefined;
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const locks = lockManager();
  if (!locks) return { held: Promise.resolve(), release };
  const held = new Promise<void>((resolve) => {
    const request = async (): Promise<void> => {
      await locks.request(answer, () => {
        resolve();
        return released;
      });
    };
    request().catch(() => { resolve(); });
  });
  return { held, release };
}

// The answers that grow in any tab.
export async function growing(): Promise<Set<string>> {
  try {
    const state = await lockManager()?.query();
    return new Set(state?.held?.flatMap(({ name }) => name ?? []));
  } catch {
    return new Set();
  }
}

// TypeScript has locks everywhere, browsers in secure contexts alone, and not for a page that may keep nothing.
function lockManager(): LockManager | undefined {
  try {
    return navigator.locks;
  } catch {
    return undefined;
  }
}
