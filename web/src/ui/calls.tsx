import { useState } from "preact/hooks";
import type { Call } from "../chat/calls";
import { strings } from "../strings";
import { JsonView } from "./json_view";

// The functions that an answer calls, folded; their arguments are rendered when somebody looks.
export function Calls({ calls, isGrowing }: { calls: readonly Call[]; isGrowing: boolean }) {
  return (
    <>
      {calls.map((call, index) => <CallView key={call.id} call={call} isGrowing={isGrowing && index === calls.length - 1} />)}
      {!isGrowing && <p class="note">{strings.callsNotRun}</p>}
    </>
  );
}

function CallView({ call, isGrowing }: { call: Call; isGrowing: boolean }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details class="call" onToggle={(event) => { setOpen(event.currentTarget.open); }}>
      <summary><span class={isGrowing ? "waiting" : ""}>{strings.calls(call.name)}</span></summary>
      {isOpen && <JsonView json={call.arguments} isGrowing={isGrowing} />}
    </details>
  );
}
