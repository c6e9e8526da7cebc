// Functions that a model calls in an answer, as the Responses API's events have them.

export interface Call {
  readonly id: string;
  readonly name: string;
  readonly arguments: string; // JSON, as far as it has come
}

type Event = Readonly<Record<string, unknown>>;

// Whether an event brings a piece of a call.
export function isCallDelta({ type }: Event): boolean {
  return type === "response.function_call_arguments.delta";
}

// The calls of an answer after an event; the same ones where that is not about calls.
export function withCallEvent(calls: readonly Call[], event: Event): readonly Call[] {
  switch (event["type"]) {
    case "response.output_item.added":
    case "response.output_item.done": {
      const item = event["item"] as Event | undefined;
      if (item?.["type"] !== "function_call") return calls;
      const call = { id: text(item["id"]), name: text(item["name"]), arguments: text(item["arguments"]) };
      return calls.some(({ id }) => id === call.id) ? changed(calls, call.id, () => call) : [...calls, call];
    }
    case "response.function_call_arguments.delta":
      return changed(calls, event["item_id"], (call) => ({ ...call, arguments: call.arguments + text(event["delta"]) }));
    case "response.function_call_arguments.done":
      return changed(calls, event["item_id"], (call) => ({ ...call, arguments: text(event["arguments"]) }));
    default:
      return calls;
  }
}

// Calls as a file has them, which may be anything: what is none is left out.
export function callsOf(value: unknown): Call[] {
  const given = Array.isArray(value) ? (value as unknown[]) : [];
  return given.flatMap((one) => {
    const { id, name, arguments: json } = (one ?? {}) as Event;
    const isCall = typeof id === "string" && typeof name === "string" && typeof json === "string";
    return isCall ? [{ id, name, arguments: json }] : [];
  });
}

function changed(calls: readonly Call[], id: unknown, change: (call: Call) => Call): readonly Call[] {
  return calls.some((call) => call.id === id) ? calls.map((call) => (call.id === id ? change(call) : call)) : calls;
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}
