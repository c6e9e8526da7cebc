// Models as people read of them: sizes, counts, and what is found by a search.

import type { Model, ModelDetails } from "../server/models";
import { decimal } from "../strings/decimal";

const UNITS = ["B", "kB", "MB", "GB", "TB"];
const COUNTS = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]] as const;

// In decimal units, with three digits: "15.1 MB".
export function sizeText(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 99.95 ? decimal(value, 0) : decimal(value, 1)} ${UNITS[unit] ?? ""}`;
}

// "8.0B", "270M".
export function countText(count: number): string {
  const [scale, name] = COUNTS.find(([scale]) => count >= scale) ?? [1, ""];
  const value = count / scale;
  return `${value >= 99.95 || !name ? decimal(value, 0) : decimal(value, 1)}${name}`;
}

// Of a context's length, which is a power of two or nearly so: "128K".
export function tokensText(tokens: number): string {
  return tokens >= 1024 ? `${Math.round(tokens / 1024)}K` : String(tokens);
}

// The type that most of the weights have, and how many others there are: F32 norms say nothing.
export function typeText({ weight_types: types }: ModelDetails): string {
  const [main, ...others] = types;
  const rest = others.filter((name) => name !== "F32");
  return main === undefined ? "" : rest.length ? `${main} +${rest.length}` : main;
}

export function summary(details: ModelDetails): string {
  const { parameters, format, file_bytes: bytes } = details;
  const words = [parameters ? countText(parameters) : "", typeText(details), format === "gguf" ? "GGUF" : format, sizeText(bytes)];
  return words.filter(Boolean).map((word) => word.replaceAll(" ", "\u00a0")).join(" · ");
}

// Whether a model has every word of a search in its name or in what is known of it.
export function isFound({ id, details }: Model, search: string): boolean {
  const text = [id, details ? summary(details) : "", details?.architecture ?? "", ...(details?.weight_types ?? [])].join(" ").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

// The model that an arrow key leads to from another; from none it is an end of the list.
export function neighbour(models: readonly Model[], id: string | null, key: string): string | null {
  const last = models.length - 1;
  const at = models.findIndex((model) => model.id === id);
  const steps: Record<string, number> = {
    ArrowDown: Math.min(at + 1, last),
    ArrowUp: at < 0 ? last : Math.max(at - 1, 0),
    PageDown: Math.min(Math.max(at, 0) + 8, last),
    PageUp: Math.max(at - 8, 0),
  };
  const next = steps[key];
  return next === undefined ? null : (models[next]?.id ?? null);
}
