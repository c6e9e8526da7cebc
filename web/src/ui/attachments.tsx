import { useEffect } from "preact/hooks";
import { attached, FileError } from "../chat/files";
import type { Attached } from "../chat/files";
import { strings } from "../strings";
import { usePage } from "./context";
import type { Page } from "./context";

// Reads files into what goes with the next question; what can't be read is told, and the rest goes.
async function add({ chats, answers }: Page, files: readonly File[]): Promise<void> {
  answers.problem.value = null;
  const chat = chats.currentId.value;
  for (const file of files) {
    const there = chats.all.value.get(chat)?.draftFiles ?? [];
    try {
      const read = await attached(file, there.length);
      chats.dispatch(chat, { type: "draftFiles", files: [...(chats.all.value.get(chat)?.draftFiles ?? []), read] });
    } catch (error) {
      if (!(error instanceof FileError)) throw error;
      answers.problem.value = { text: strings.fileRefused(error) };
    }
  }
}

// The button for files, and files that are dropped on the page or pasted.
export function AttachButton() {
  const page = usePage();
  useEffect(() => {
    const over = (event: DragEvent): void => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    };
    const taken = (event: Event, files: FileList | undefined): void => {
      if (!files?.length || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      void add(page, [...files]);
    };
    const dropped = (event: DragEvent): void => { taken(event, event.dataTransfer?.files); };
    const pasted = (event: ClipboardEvent): void => { taken(event, event.clipboardData?.files); };
    document.addEventListener("dragover", over);
    document.addEventListener("drop", dropped);
    document.addEventListener("paste", pasted);
    return () => {
      document.removeEventListener("dragover", over);
      document.removeEventListener("drop", dropped);
      document.removeEventListener("paste", pasted);
    };
  }, []);
  return (
    <label class="tool" title={strings.attach}>
      <span class="hidden">{strings.attach}</span>
      <input id="attach" class="hidden" type="file" multiple onChange={(event) => {
        const input = event.currentTarget;
        void add(page, [...(input.files ?? [])]).then(() => { input.value = ""; });
      }} />
      <svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true">
        <path d="m20 11.5-8.2 8.2a5 5 0 0 1-7.1-7.1l8.6-8.6a3.3 3.3 0 0 1 4.7 4.7l-8.5 8.5a1.6 1.6 0 0 1-2.3-2.3l7.6-7.6" />
      </svg>
    </label>
  );
}

// Names and sizes, and where there is `onRemove` a way to take each away.
export function Files({ files, onRemove }: { files: readonly Attached[]; onRemove?: (index: number) => void }) {
  if (!files.length) return null;
  return (
    <ul class="files" aria-label={strings.files}>
      {files.map(({ name, text }, index) => (
        <li key={index} class="attached">
          <span class="name" dir="auto">{name}</span>
          <span class="size">{strings.size(text.length)}</span>
          {onRemove && (
            <button type="button" aria-label={strings.removeFile(name)} onClick={() => { onRemove(index); }}>×</button>
          )}
        </li>
      ))}
    </ul>
  );
}
