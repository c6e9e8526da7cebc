// Where a model would lie: the table of its parts, and the share of each kind of memory that they take.

import type { DevicePlan } from "../server/models";

export type Kind = "weights" | "cache" | "activations" | "staging";

export interface Part {
  kind: Kind;
  group: string;
  layers: [number, number] | null;
  bytes: number;
  heap: string;
  transforms: readonly string[];
}

export interface Heap {
  name: string;
  room: number; // bytes that may be used; 0 = not known
  used: number;
  shares: { kind: Kind; bytes: number }[]; // in the order of `KINDS`, without empty ones
}

const KINDS: readonly Kind[] = ["weights", "cache", "activations", "staging"];
const GROUP_KINDS: Record<string, Kind> = { "KV cache": "cache", "sequence state": "cache", workspace: "activations" };

export function partsOf(plan: DevicePlan): Part[] {
  const parts = plan.placement.map((row) => ({ ...row, kind: GROUP_KINDS[row.group] ?? ("weights" as const) }));
  const isTied = !plan.placement.some(({ group }) => group === "embeddings");
  const named = parts.map((part) => (isTied && part.group === "output head" ? { ...part, group: "tied head" } : part));
  const extra = plan.staged_bytes + plan.step_bytes;
  if (extra) named.push({ kind: "staging", group: "staging", layers: null, bytes: extra, heap: stagingHeap(plan), transforms: [] });
  return named;
}

// Each kind of memory that has something of the model, the GPU's own first.
export function heapsOf(plan: DevicePlan): Heap[] {
  const parts = partsOf(plan);
  const names = [...new Set(parts.map(({ heap }) => heap))].sort((a, b) => Number(b === "VRAM") - Number(a === "VRAM"));
  return names.map((name) => {
    const own = parts.filter(({ heap }) => heap === name);
    const shares = KINDS.map((kind) => ({ kind, bytes: sum(own.filter((part) => part.kind === kind)) }));
    const room = (name === "VRAM" ? plan.room?.vram : plan.room?.gtt) ?? 0;
    return { name, room, used: sum(own), shares: shares.filter(({ bytes }) => bytes) };
  });
}

function stagingHeap(plan: DevicePlan): string {
  return plan.staged_bytes && plan.room?.gtt ? "GTT" : "VRAM";
}

function sum(parts: readonly { bytes: number }[]): number {
  return parts.reduce((total, { bytes }) => total + bytes, 0);
}
