import { useState } from "preact/hooks";
import { strings } from "../strings";
import { usePage } from "./context";
import { Dialog } from "./dialog";

export function KeyDialog({ hadKey }: { hadKey: boolean }) {
  const { session } = usePage();
  const [key, setKey] = useState("");
  return (
    <Dialog id="key-dialog" labelledBy="key-title" onClose={() => { session.keyWanted.value = null; }}>
      <form
        id="key-form"
        onSubmit={(event) => {
          event.preventDefault();
          session.setKey(key.trim());
        }}
      >
        <h2 id="key-title">{strings.keyNeeded}</h2>
        <label for="key">{strings.key}</label>
        <input id="key" type="password" autocomplete="off" required value={key} onInput={(event) => { setKey(event.currentTarget.value); }} />
        {hadKey && <p id="key-error" class="problem">{strings.keyRefused}</p>}
        <button class="primary" type="submit">{strings.connect}</button>
      </form>
    </Dialog>
  );
}
