import { useState } from "preact/hooks";
import { NO_SETTINGS, parsed, SETTINGS } from "../chat/settings";
import type { Setting } from "../chat/settings";
import { strings } from "../strings";
import { usePage } from "./context";
import { Dialog } from "./dialog";

// The system prompt of the conversation that is shown, and how its tokens are chosen.
export function SettingsDialog({ onClose }: { onClose: () => void }) {
  const { chats } = usePage();
  const { settings } = chats.current.value;
  const [system, setSystem] = useState(settings.system);
  const [texts, setTexts] = useState<Readonly<Record<string, string>>>(() =>
    Object.fromEntries(Object.entries(settings.values).map(([name, value]) => [name, String(value)])),
  );
  const isWrong = (setting: Setting): boolean => parsed(setting, texts[setting.name] ?? "") === undefined;
  const save = (): void => {
    const numbers = SETTINGS.map((setting) => [setting.name, parsed(setting, texts[setting.name] ?? "")] as const);
    const values = Object.fromEntries(numbers.filter((pair): pair is readonly [string, number] => pair[1] != null));
    chats.dispatch(chats.currentId.value, { type: "settings", settings: { system: system.trim(), values } });
    onClose();
  };
  const reset = (): void => {
    setSystem(NO_SETTINGS.system);
    setTexts({});
  };
  return (
    <Dialog id="settings-dialog" labelledBy="settings-title" onClose={onClose}>
      <form onSubmit={(event) => { event.preventDefault(); if (!SETTINGS.some(isWrong)) save(); }}>
        <h2 id="settings-title">{strings.settingsTitle}</h2>
        <label for="settings-system">{strings.systemPrompt}</label>
        <textarea id="settings-system" rows={4} dir="auto" value={system} aria-describedby="settings-system-hint"
          onInput={(event) => { setSystem(event.currentTarget.value); }} />
        <p id="settings-system-hint" class="hint">{strings.systemPromptHint}</p>
        <div class="settings">
          {SETTINGS.map((setting) => (
            <Field key={setting.name} setting={setting} text={texts[setting.name] ?? ""} isWrong={isWrong(setting)}
              onInput={(text) => { setTexts({ ...texts, [setting.name]: text }); }} />
          ))}
        </div>
        <div class="buttons">
          <button class="quiet" type="button" onClick={reset}>{strings.resetSettings}</button>
          <button class="quiet" type="button" onClick={onClose}>{strings.cancel}</button>
          <button class="primary" type="submit" disabled={SETTINGS.some(isWrong)}>{strings.saveSettings}</button>
        </div>
      </form>
    </Dialog>
  );
}

function Field(props: { setting: Setting; text: string; isWrong: boolean; onInput: (text: string) => void }) {
  const { setting, isWrong } = props;
  const id = `setting-${setting.name}`;
  return (
    <div class="setting">
      <label for={id}>{strings.settings[setting.name] ?? setting.name}</label>
      <input id={id} type="text" inputmode={setting.isWhole ? "numeric" : "decimal"} autocomplete="off" value={props.text}
        placeholder={strings.modelsOwn} aria-invalid={isWrong} {...(isWrong && { "aria-describedby": `${id}-wrong` })}
        onInput={(event) => { props.onInput(event.currentTarget.value); }} />
      {isWrong && <p id={`${id}-wrong`} class="problem">{strings.expectedNumber(setting)}</p>}
    </div>
  );
}
