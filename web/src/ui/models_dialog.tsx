import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { listModels, loadModel, unloadModel } from "../server/models";
import type { Model } from "../server/models";
import { strings } from "../strings";
import { usePage } from "./context";
import { Dialog } from "./dialog";

const SERVED = new Set(["loading", "ready"]);

// Lists the server's models, has one loaded in the place of the last, or unloads that.
export function ModelsDialog({ onClose }: { onClose: () => void }) {
  const { session } = usePage();
  const [models, setModels] = useState<Model[]>([]);
  const [error, setError] = useState("");
  const list = useRef<HTMLUListElement>(null);
  const title = useRef<HTMLHeadingElement>(null);
  const state = session.model.value;
  useEffect(() => {
    let isCurrent = true;
    listModels(session.connection).then(
      (found) => { if (isCurrent) setModels(found); },
      (problem: unknown) => { if (isCurrent) setError(messageOf(problem)); },
    );
    return () => { isCurrent = false; };
  }, [state]);
  useLayoutEffect(() => {
    if (models.length && document.activeElement === title.current) list.current?.querySelector("button")?.focus();
  }, [models]);
  const act = async (action: Promise<void>): Promise<void> => {
    setError("");
    try {
      await action;
      onClose();
    } catch (problem) {
      setError(messageOf(problem));
    }
  };
  return (
    <Dialog id="models-dialog" labelledBy="models-title" onClose={onClose}>
      <h2 id="models-title" ref={title} tabIndex={-1} autofocus>{strings.modelsTitle}</h2>
      <p id="models-hint">{strings.modelsHint}</p>
      <ul id="models-list" class="models" ref={list}>
        {models.map(({ id, status: listed }) => {
          const word = id === state?.model ? strings.words[state.status] : undefined;
          const status = word && state ? state.status : listed; // what came as an event is newer than the list
          return (
            <li key={id}>
              <button
                type="button"
                class="model"
                data-model={id}
                {...(SERVED.has(status) && { "aria-current": true })}
                onClick={() => {
                  if (status === "ready") onClose();
                  else void act(loadModel(session.connection, id));
                }}
              >
                <span class="name">{id}</span>
                {word && <span class="state">{word}</span>}
              </button>
            </li>
          );
        })}
      </ul>
      {error && <p id="models-error" class="problem" role="alert">{error}</p>}
      <div class="buttons">
        {models.some(({ loaded }) => loaded) && (
          <button id="unload" class="quiet" type="button" onClick={() => void act(unloadModel(session.connection))}>{strings.unload}</button>
        )}
        <button class="quiet" type="button" onClick={onClose}>{strings.close}</button>
      </div>
    </Dialog>
  );
}

function messageOf(problem: unknown): string {
  return problem instanceof Error ? problem.message : String(problem);
}
