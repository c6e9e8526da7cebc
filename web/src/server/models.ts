// The server's models over HTTP.

import { strings } from "../strings";
import type { Connection } from "./connection";

export interface ModelDetails {
  file_bytes: number;
  format: string;
  weight_types: string[]; // most bytes first
  quantised: boolean | null;
  parameters: number | null;
  layers: number | null;
  max_context: number | null;
  architecture: string | null;
  fits: boolean | null;
}

export interface Model {
  id: string;
  status: string;
  loaded: boolean;
  details: ModelDetails | null; // null = its files have not been read yet, or can't be
  problem: string | null;
}

export interface Listing {
  data: Model[];
  adapters: string[];
}

// What is loaded, and how; what is left out is as the server does it by itself.
export interface Choice {
  model: string;
  weights?: string;
  max_context?: number;
  loras?: { name: string; weight: number }[];
}

export interface PlacementRow {
  group: string;
  layers: [number, number] | null;
  bytes: number;
  heap: string;
  transforms: string[];
}

export interface DevicePlan {
  device: string;
  device_type: string;
  software: boolean;
  fits: boolean;
  problem: string | null;
  max_context: number;
  room: { vram: number; gtt: number; total: number; is_shared: boolean } | null;
  placement: PlacementRow[];
  attention: { device?: string } | null;
  kv_cache_bytes: number;
  staged_bytes: number;
  step_bytes: number;
}

export interface Placement {
  model: string;
  weights: string;
  bytes_to_read: number;
  fits: boolean;
  devices: DevicePlan[];
}

export async function listModels(connection: Connection): Promise<Listing> {
  return (await request(connection, "models")) as Listing;
}

export async function placementOf(connection: Connection, choice: Choice, signal: AbortSignal): Promise<Placement> {
  return (await request(connection, "models/placement", choice, signal)) as Placement;
}

export async function loadModel(connection: Connection, choice: Choice): Promise<void> {
  await request(connection, "models/load", choice);
}

export async function unloadModel(connection: Connection): Promise<void> {
  await request(connection, "models/unload", {});
}

async function request(connection: Connection, path: string, body?: object, signal?: AbortSignal): Promise<unknown> {
  let response: Response;
  try {
    response = await fetch(`/v1/${path}`, {
      headers: connection.headers,
      cache: "no-store",
      ...(body && { method: "POST", body: JSON.stringify(body) }),
      ...(signal && { signal }),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error(strings.serverSilent, { cause: error });
  }
  const answer = (await response.json()) as { error?: { message: string } };
  if (!response.ok) throw new Error(answer.error?.message ?? strings.httpStatus(response.status));
  return answer;
}
