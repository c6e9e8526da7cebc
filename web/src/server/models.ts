// The server's models over HTTP.

import { strings } from "../strings";
import type { Connection } from "./connection";

export interface Model {
  id: string;
  status: string;
  loaded: boolean;
}

export async function listModels(connection: Connection): Promise<Model[]> {
  return ((await request(connection, "models")) as { data: Model[] }).data;
}

export async function loadModel(connection: Connection, model: string): Promise<void> {
  await request(connection, "models/load", { model });
}

export async function unloadModel(connection: Connection): Promise<void> {
  await request(connection, "models/unload", {});
}

async function request(connection: Connection, path: string, body?: object): Promise<unknown> {
  let response: Response;
  try {
    response = await fetch(`/v1/${path}`, {
      headers: connection.headers,
      cache: "no-store",
      ...(body && { method: "POST", body: JSON.stringify(body) }),
    });
  } catch {
    throw new Error(strings.serverSilent);
  }
  const answer = (await response.json()) as { error?: { message: string } };
  if (!response.ok) throw new Error(answer.error?.message ?? strings.httpStatus(response.status));
  return answer;
}
