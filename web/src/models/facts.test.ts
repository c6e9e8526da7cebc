import { expect, test } from "vitest";
import type { Model } from "../server/models";
import { countText, isFound, neighbour, sizeText, summary, tokensText, typeText } from "./facts";

const DETAILS = {
  file_bytes: 16_060_556_376, format: "safetensors", weight_types: ["BF16", "F32"], quantised: false, parameters: 8_030_261_248,
  layers: 32, max_context: 131_072, architecture: "LlamaForCausalLM", fits: true,
};

function model(id: string, details: Model["details"] = null): Model {
  return { id, status: "available", loaded: false, details, problem: null };
}

test("sizes and counts have three digits at most", () => {
  expect([0, 999, 15_100_000, 16_060_556_376, 999_600_000].map(sizeText)).toEqual(["0 B", "999 B", "15.1 MB", "16.1 GB", "1.0 GB"]);
  expect([12, 270_000_000, 8_030_261_248, 2e12].map(countText)).toEqual(["12", "270M", "8.0B", "2.0T"]);
  expect([512, 40_960, 131_072].map(tokensText)).toEqual(["512", "40K", "128K"]);
});

test("a model is summed up by what is known of it", () => {
  expect(summary(DETAILS)).toBe("8.0B · BF16 · safetensors · 16.1\u00a0GB");
  expect(summary({ ...DETAILS, parameters: null, weight_types: [] })).toBe("safetensors · 16.1\u00a0GB");
  expect(typeText({ ...DETAILS, weight_types: ["Q4_K", "Q6_K", "F32"] })).toBe("Q4_K +1");
});

test("a search finds a model by words of its name, its types and its kind", () => {
  const llama = model("meta/Llama-3.1-8B", DETAILS);
  for (const search of ["", "llama", "LLAMA meta", "bf16 8.0b", " safetensors "]) expect(isFound(llama, search)).toBe(true);
  for (const search of ["qwen", "llama qwen"]) expect(isFound(llama, search)).toBe(false);
  expect(isFound(model("a"), "a")).toBe(true);
});

test("arrows go through the models and stop at the ends", () => {
  const models = ["a", "b", "c"].map((id) => model(id));
  expect(neighbour(models, "a", "ArrowDown")).toBe("b");
  expect(neighbour(models, "c", "ArrowDown")).toBe("c");
  expect(neighbour(models, "a", "ArrowUp")).toBe("a");
  expect(neighbour(models, null, "ArrowDown")).toBe("a");
  expect(neighbour(models, "gone", "ArrowUp")).toBe("c");
  expect(neighbour(models, "a", "PageDown")).toBe("c");
  expect(neighbour([], null, "ArrowDown")).toBeNull();
  expect(neighbour(models, "a", "x")).toBeNull();
});
