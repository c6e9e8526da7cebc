// What a conversation asks of the model beside its messages: a system prompt, and how tokens are chosen.

export interface Setting {
  readonly name: string; // as the server has it
  readonly min: number;
  readonly max: number;
  readonly isWhole: boolean;
  readonly isOpen: boolean; // the least value itself is too small
}

function setting(name: string, min: number, max: number, kind: "whole" | "open" | "" = ""): Setting {
  return { name, min, max, isWhole: kind === "whole", isOpen: kind === "open" };
}

export const SETTINGS: readonly Setting[] = [
  setting("temperature", 0, 100),
  setting("top_p", 0, 1, "open"),
  setting("top_k", 0, 1024, "whole"),
  setting("min_p", 0, 1),
  setting("repetition_penalty", 0, 100, "open"),
  setting("presence_penalty", -2, 2),
  setting("frequency_penalty", -2, 2),
  setting("max_output_tokens", 1, 2 ** 31 - 1, "whole"),
  setting("seed", 0, Number.MAX_SAFE_INTEGER, "whole"),
];

export interface Settings {
  readonly system: string; // empty = none
  readonly values: Readonly<Record<string, number>>; // by the names of SETTINGS; what is not there is the server's
}

export const NO_SETTINGS: Settings = { system: "", values: {} };

export function isAnySet({ system, values }: Settings): boolean {
  return system !== "" || Object.keys(values).length > 0;
}

// Returns the number that a text is, null for an empty one, undefined for one that the setting does not take.
export function parsed({ min, max, isWhole, isOpen }: Setting, text: string): number | null | undefined {
  const trimmed = text.trim().replace(",", ".");
  if (!trimmed) return null;
  const value = /^[+-]?(\d+\.?\d*|\.\d+)$/.test(trimmed) ? Number(trimmed) : NaN;
  const isTaken = value >= min && value <= max && !(isOpen && value === min) && (!isWhole || Number.isSafeInteger(value));
  return isTaken ? value : undefined;
}

// Settings as a file has them, which may be anything: what is no setting is left out.
export function settingsOf(value: unknown): Settings {
  if (typeof value !== "object" || value === null) return NO_SETTINGS;
  const { system, values } = value as Partial<Record<keyof Settings, unknown>>;
  const given = (typeof values === "object" && values !== null ? values : {}) as Record<string, unknown>;
  const taken = SETTINGS.flatMap((one) => {
    const number = given[one.name];
    return typeof number === "number" && parsed(one, String(number)) === number ? [[one.name, number] as const] : [];
  });
  return { system: typeof system === "string" ? system : "", values: Object.fromEntries(taken) };
}
