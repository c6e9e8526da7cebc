import { loadCells, loadNumbers, promptFront } from "../server/load";
import type { LoadProgress } from "../server/load";
import { strings } from "../strings";
import { usePage } from "./context";

const DENSE = 80; // layers, from which on there is no room for gaps

// What becomes of the model, as long as it is not simply there.
export function LoadView() {
  const { session } = usePage();
  const state = session.model.value;
  if (!state || state.status === "ready" || session.link.value !== "open") return null;
  const { model, status, error } = state;
  const load = session.load.value;
  const kind = status === "error" ? "failed" : status === "empty" ? "idle" : "";
  return (
    <div id="load" class={`load ${kind}`}>
      <p class="what">
        <span id="load-text" role="status">{strings.states[status]?.(model, error) ?? status}</span>
        <span id="load-numbers" class="numbers">{load && loadNumbers(load)}</span>
      </p>
      {!kind && (load ? (
        <Strip key="known" load={load} />
      ) : (
        <div key="unknown" id="load-bar" class="strip unknown" role="progressbar" aria-labelledby="load-text" />
      ))}
    </div>
  );
}

// A cell for each layer, from the embeddings to the output head; they light up as they come, and as a question passes.
// Before the layers are known it is what has come of a download.
function Strip({ load }: { load: LoadProgress }) {
  const { active, total, share } = loadCells(load);
  const front = promptFront(load);
  return (
    <div id="load-bar" class={total > DENSE ? "strip dense" : "strip"} role="progressbar" aria-labelledby="load-text" aria-valuemin={0}
      aria-valuemax={100} aria-valuenow={Math.floor(share * 100)} aria-valuetext={loadNumbers(load)}>
      {Array.from({ length: total }, (_, layer) => (
        <span key={layer} class={layer < front ? "cell on passed" : layer < active ? "cell on" : "cell"} />
      ))}
    </div>
  );
}

// How far a question has followed the load. Nothing is read out: the log that it stands in would say every step.
export function Climb({ response }: { response: string | undefined }) {
  const { session } = usePage();
  const load = session.load.value;
  const passed = response === undefined ? undefined : load?.prompts?.[response];
  if (!load || passed === undefined) return null;
  const { layers_active: active, layers_total: total } = load;
  return (
    <span class="climb" aria-hidden="true">
      <span class="tower" style={{ "--loaded": String(active / total), "--passed": String(passed / total) }} />
      <span class="numbers">{strings.promptIn(passed, total)}</span>
    </span>
  );
}
