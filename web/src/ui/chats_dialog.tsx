import { useRef, useState } from "preact/hooks";
import { exported, imported, ImportError } from "../chat/transfer";
import { titleOf } from "../chat/tree";
import type { Conversation } from "../chat/tree";
import { language, LANGUAGES, speak, strings } from "../strings";
import type { Language } from "../strings";
import { usePage } from "./context";
import { Dialog } from "./dialog";
import { useFocusBack } from "./focus";
import { isEscape } from "./keys";
import { Narrow } from "./narrow";

// The conversations of this browser: found, opened, renamed, deleted, written to a file and read from one.
export function ChatsDialog({ onClose }: { onClose: () => void }) {
  const { chats } = usePage();
  const [sought, setSought] = useState("");
  const all = chats.listed.value;
  const found = all.filter((chat) => matches(chat, sought.trim().toLowerCase()));
  return (
    <Dialog id="chats-dialog" labelledBy="chats-title" onClose={onClose}>
      <h2 id="chats-title">{strings.chatsTitle}</h2>
      <input id="chats-search" type="search" aria-label={strings.search} placeholder={strings.search} value={sought}
        onInput={(event) => { setSought(event.currentTarget.value); }} />
      <ul id="chats-list" class="models">
        {found.map((chat) => <Item key={chat.id} chat={chat} onOpen={() => { chats.open(chat.id); onClose(); }} />)}
      </ul>
      {chats.numDamaged.value > 0 && <p class="problem">{strings.damaged(chats.numDamaged.value)}</p>}
      {!found.length && <p role="status">{all.length ? strings.nothingFound : strings.noChats}</p>}
      <div class="buttons">
        <Languages />
        <Import />
        <button class="quiet" type="button" disabled={!all.length} onClick={() => { save(exported(all)); }}>{strings.exportAll}</button>
        <button class="quiet" type="button" onClick={onClose}>{strings.close}</button>
      </div>
    </Dialog>
  );
}

function matches(chat: Conversation, sought: string): boolean {
  if (!sought || titleOf(chat).toLowerCase().includes(sought)) return true;
  return [...chat.messages.values()].some(({ text }) => text.toLowerCase().includes(sought));
}

function Item({ chat, onOpen }: { chat: Conversation; onOpen: () => void }) {
  const { chats, answers, notice } = usePage();
  const [title, setTitle] = useState<string | null>(null); // while it is renamed
  const input = useRef<HTMLInputElement>(null);
  const rename = useRef<HTMLButtonElement>(null);
  const isRenamed = title !== null;
  useFocusBack(isRenamed, input, rename);
  const name = titleOf(chat) || strings.untitled;
  if (title !== null) {
    return (
      <li>
        <form class="chat" onSubmit={(event) => {
          event.preventDefault();
          chats.dispatch(chat.id, { type: "rename", title });
          setTitle(null);
        }}>
          <input ref={input} aria-label={strings.newTitle} value={title} maxLength={200}
            onInput={(event) => { setTitle(event.currentTarget.value); }}
            onKeyDown={(event) => {
              if (!isEscape(event)) return;
              event.preventDefault(); // which would close the dialog
              setTitle(null);
            }} />
          <button class="quiet" type="submit">{strings.rename}</button>
        </form>
      </li>
    );
  }
  const remove = (): void => { notice.show(strings.chatDeleted, answers.removeChat(chat.id)); };
  return (
    <li class="chat">
      <button type="button" class="model" {...(chat.id === chats.currentId.value && { "aria-current": true })} onClick={onOpen}>
        <span class="name" dir="auto">{name}</span>
      </button>
      <button ref={rename} class="quiet" type="button" aria-label={strings.renameOf(name)} onClick={() => { setTitle(name); }}>
        <Narrow path="M4 20h4L19 9l-4-4L4 16v4Z" text={strings.rename} />
      </button>
      <button class="quiet" type="button" aria-label={strings.deleteOf(name)} onClick={remove}>
        <Narrow path="M5 7h14M10 7V5h4v2M7 7l1 13h8l1-13" text={strings.delete} />
      </button>
    </li>
  );
}

function Languages() {
  return (
    <select id="language" aria-label={strings.language} value={language}
      onChange={(event) => { speak(event.currentTarget.value as Language); }}>
      {Object.entries(LANGUAGES).map(([tag, name]) => <option key={tag} value={tag} lang={tag}>{name}</option>)}
    </select>
  );
}

function Import() {
  const { chats, answers, notice } = usePage();
  const read = async (input: HTMLInputElement): Promise<void> => {
    const file = input.files?.[0];
    if (!file) return;
    try {
      const found = imported(await file.text());
      chats.add(found);
      notice.show(strings.imported(found.length), () => {
        // What has been gone on with stays.
        for (const { id, messages } of found) if (chats.all.value.get(id)?.messages.size === messages.size) answers.removeChat(id);
      });
    } catch (error) {
      const reason = error instanceof ImportError ? strings.importErrors[error.reason](error.value) : strings.fileUnreadable;
      notice.show(strings.importFailed(reason));
    }
    input.value = "";
  };
  return (
    <label class="quiet file">
      {strings.importFile}
      <input id="chats-import" class="hidden" type="file" accept="application/json,.json" onChange={(event) => void read(event.currentTarget)} />
    </label>
  );
}

function save(text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = "conversations.json";
  link.click();
  setTimeout(() => { URL.revokeObjectURL(url); }, 1000);
}
