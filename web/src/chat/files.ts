// Text files that go with a question: read, refused by name, and written into what the model is told.

const MAX_BYTES = 1_000_000;
const MAX_FILES = 20;

export interface Attached {
  readonly name: string;
  readonly text: string;
}

export class FileError extends Error {
  constructor(
    readonly file: string,
    readonly reason: "large" | "binary" | "unreadable" | "many",
    readonly bytes: number,
  ) {
    super(`${file}: ${reason}`);
  }
}

export async function attached(file: File, numThere: number): Promise<Attached> {
  if (numThere >= MAX_FILES) throw new FileError(file.name, "many", MAX_FILES);
  if (file.size > MAX_BYTES) throw new FileError(file.name, "large", file.size);
  let bytes: ArrayBuffer;
  try {
    bytes = await file.arrayBuffer();
  } catch {
    throw new FileError(file.name, "unreadable", file.size); // a folder, or a file that is gone
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return { name: file.name, text };
  } catch {
    // It is no text in UTF-8.
  }
  throw new FileError(file.name, "binary", file.size);
}

// What the model is told of a question: its files, each fenced under its name, then the text.
export function withFiles(text: string, files: readonly Attached[]): string {
  return [...files.map(fenced), text].filter(Boolean).join("\n\n");
}

function fenced({ name, text }: Attached): string {
  const longest = Math.max(0, ...[...text.matchAll(/`{3,}/g)].map(([run]) => run.length));
  const fence = "`".repeat(Math.max(3, longest + 1));
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

// Files as they are kept, which may be anything where that came from elsewhere.
export function filesOf(value: unknown): Attached[] {
  if (!Array.isArray(value)) return [];
  return value.slice(0, MAX_FILES).flatMap((entry: unknown) => {
    const { name, text } = (entry ?? {}) as Partial<Record<keyof Attached, unknown>>;
    return typeof name === "string" && typeof text === "string" ? [{ name, text }] : [];
  });
}
