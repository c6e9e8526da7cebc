import { sizeText, tokensText } from "../models/facts";
import { heapsOf, partsOf } from "../models/placement";
import type { Heap, Part } from "../models/placement";
import type { DevicePlan } from "../server/models";
import { strings } from "../strings";
import type { Plan } from "./model_hooks";

// Whether a model has room, and where each part of it would lie.
export function PlacementView({ plan: { placement, error, isPending } }: { plan: Plan }) {
  if (error) return <p id="placement" class="problem">{error}</p>;
  if (!placement) return <p id="placement" class="hint">{isPending ? strings.planning : ""}</p>;
  const device = placement.devices.at(-1);
  const problems = placement.devices.filter(({ fits }) => !fits);
  return (
    <div id="placement" class="placement" aria-busy={isPending}>
      {device?.fits && (
        <>
          <p class="fits">{strings.fitsOn(device.device, tokensText(device.max_context))}</p>
          {heapsOf(device).map((heap) => <HeapBar key={heap.name} heap={heap} device={device} />)}
          {device.attention && <p class="hint">{strings.cacheElsewhere(sizeText(device.kv_cache_bytes), device.attention.device ?? "")}</p>}
          <Table device={device} />
        </>
      )}
      {!placement.fits && problems.map(({ device: name, problem }) => (
        <p key={name} class="problem">{strings.doesNotFit(name, (problem ?? "").replace(`${name}: `, ""))}</p>
      ))}
    </div>
  );
}

function HeapBar({ heap, device }: { heap: Heap; device: DevicePlan }) {
  const whole = Math.max(heap.room, heap.used, 1);
  return (
    <div class="heap">
      <p class="heap-name">
        <span>{heapName(heap.name, device)}</span>
        <span class="numbers">{heap.room ? strings.ofRoom(sizeText(heap.used), sizeText(heap.room)) : sizeText(heap.used)}</span>
      </p>
      <div class="heap-bar" aria-hidden="true">
        {heap.shares.map(({ kind, bytes }) => (
          <span key={kind} class={`share ${kind}`} style={{ "--share": String(bytes / whole) }} />
        ))}
      </div>
      <ul class="legend">
        {heap.shares.map(({ kind, bytes }) => (
          <li key={kind} class={kind}>{`${strings.memoryKinds[kind] ?? kind} ${sizeText(bytes)}`}</li>
        ))}
      </ul>
    </div>
  );
}

function Table({ device }: { device: DevicePlan }) {
  return (
    <details class="parts">
      <summary>{strings.allParts}</summary>
      <table>
        <thead>
          <tr><th scope="col">{strings.part}</th><th scope="col">{strings.factSize}</th><th scope="col">{strings.where}</th></tr>
        </thead>
        <tbody>
          {partsOf(device).map((part) => (
            <tr key={`${part.group} ${part.layers?.join() ?? ""} ${part.heap}`}>
              <th scope="row">{partName(part)}{part.transforms.length > 0 && <span class="transforms">{part.transforms.join(", ")}</span>}</th>
              <td class="numbers">{sizeText(part.bytes)}</td>
              <td>{heapName(part.heap, device)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}

function partName({ group, layers }: Part): string {
  const name = strings.groups[group] ?? group;
  return layers ? strings.inLayers(name, ...layers) : name;
}

function heapName(heap: string, { software, device_type: type }: DevicePlan): string {
  if (software) return strings.hostMemory;
  if (heap === "VRAM") return strings.gpuMemory;
  return type === "discrete" ? strings.busMemory : strings.sharedMemory;
}
