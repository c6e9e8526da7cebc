// Which tab follows which answer: whoever has the lock of an answer's name. Without locks, which a page over plain HTTP
// from another machine lacks, each tab follows what it finds.

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
    locks
      .request(answer, () => {
        resolve();
        return released;
      })
      .catch(() => { resolve(); });
  });
  return { held, release };
}

// The answers that grow in any tab.
export async function growing(): Promise<Set<string>> {
  const state = await lockManager()?.query();
  return new Set(state?.held?.flatMap(({ name }) => name ?? []));
}

// TypeScript has locks everywhere, browsers in secure contexts alone.
function lockManager(): LockManager | undefined {
  return navigator.locks;
}
