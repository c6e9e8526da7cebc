import { expect, test } from "vitest";
import type { DevicePlan } from "../server/models";
import { heapsOf, partsOf } from "./placement";

const PLAN: DevicePlan = {
  device: "GPU", device_type: "discrete", software: false, fits: true, problem: null, max_context: 2048,
  room: { vram: 1000, gtt: 500, total: 1500, is_shared: false },
  placement: [
    { group: "embeddings", layers: null, bytes: 50, heap: "GTT", transforms: ["copy BF16"] },
    { group: "output head", layers: null, bytes: 50, heap: "VRAM", transforms: [] },
    { group: "FFN", layers: [0, 3], bytes: 300, heap: "VRAM", transforms: ["quantise BF16→int4"] },
    { group: "FFN", layers: [4, 5], bytes: 100, heap: "GTT", transforms: [] },
    { group: "KV cache", layers: null, bytes: 200, heap: "VRAM", transforms: ["f16"] },
    { group: "workspace", layers: null, bytes: 20, heap: "VRAM", transforms: [] },
  ],
  attention: null, kv_cache_bytes: 200, staged_bytes: 0, step_bytes: 10,
};

test("each kind of memory is shared among weights, cache, activations and what a load takes", () => {
  expect(heapsOf(PLAN)).toEqual([
    {
      name: "VRAM", room: 1000, used: 580,
      shares: [
        { kind: "weights", bytes: 350 }, { kind: "cache", bytes: 200 }, { kind: "activations", bytes: 20 }, { kind: "staging", bytes: 10 },
      ],
    },
    { name: "GTT", room: 500, used: 150, shares: [{ kind: "weights", bytes: 150 }] },
  ]);
});

test("the head of a model without embeddings of its own is both", () => {
  expect(partsOf(PLAN).map(({ group }) => group)).toContain("output head");
  const tied = { ...PLAN, placement: PLAN.placement.filter(({ group }) => group !== "embeddings"), step_bytes: 0 };
  expect(partsOf(tied).map(({ group }) => group)).toEqual(["tied head", "FFN", "FFN", "KV cache", "workspace"]);
});

test("a model that does not fit lies nowhere", () => {
  expect(heapsOf({ ...PLAN, fits: false, room: null, placement: [], staged_bytes: 0, step_bytes: 0 })).toEqual([]);
});
