// What somebody sets before a load, as it was typed, and the request that it makes.

import type { Choice } from "../server/models";

export interface Options {
  readonly weights: string; // "" = as the server does it by itself
  readonly context: string;
  readonly adapters: Readonly<Record<string, string>>; // the weight of each that is chosen
}

export const NO_OPTIONS: Options = { weights: "", context: "", adapters: {} };
export const SCHEMES = ["auto", "f16", "int8", "int4", "nf4"] as const;
export const MAX_ADAPTER_WEIGHT = 1000;
const MAX_CONTEXT = 2 ** 31 - 1;

// The request for a model, or null while an option has a value that can't work.
export function choiceOf(model: string, { weights, context, adapters }: Options): Choice | null {
  const tokens = contextOf(context);
  const loras = Object.entries(adapters).map(([name, text]) => ({ name, weight: weightOf(text) }));
  if (tokens === null || loras.some(({ weight }) => weight === null)) return null;
  return {
    model,
    ...(weights && { weights }),
    ...(tokens && { max_context: tokens }),
    ...(loras.length && { loras: loras.map(({ name, weight }) => ({ name, weight: weight ?? 1 })) }),
  };
}

// Tokens; 0 where nothing is typed, null for what is no such number.
export function contextOf(text: string): number | null {
  const number = Number(text.trim());
  return Number.isInteger(number) && number >= 0 && number <= MAX_CONTEXT ? number : null;
}

export function weightOf(text: string): number | null {
  const number = Number(text.trim());
  return text.trim() !== "" && Math.abs(number) <= MAX_ADAPTER_WEIGHT ? number : null;
}
