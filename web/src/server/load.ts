// How far a load is, in words: "2.1 of 15.6 GB, 1.9 GB/s, 12 of 62 layers, 7 s left"; while it still waits for a download
// nobody knows its bytes and layers, and there is that alone: "2.5 of 16.0 GB downloaded".

import { strings } from "../strings";
import { decimal } from "../strings/decimal";

const DOWNLOAD_CELLS = 64;

export interface LoadProgress {
  bytes_loaded: number;
  bytes_total: number; // 0 before the model's headers have come
  bytes_per_s: number | null;
  layers_active: number;
  layers_total: number;
  share: number;
  done: boolean;
  seconds_left: number | null;
  from_cache?: boolean;
  bytes_to_download?: number; // 0 where the model is on the server's disk
  bytes_downloaded?: number;
  prompts?: Readonly<Record<string, number>>; // the layers that each waiting response's prompt went through
}

export function loadNumbers(progress: LoadProgress): string {
  const parts: string[] = [];
  if (progress.bytes_total) parts.push(share(progress.bytes_loaded, progress.bytes_total));
  if (progress.bytes_per_s) parts.push(rate(progress.bytes_per_s));
  if (progress.layers_total) parts.push(strings.layersUsable(progress.layers_active, progress.layers_total));
  if (progress.bytes_to_download)
    parts.push(strings.downloaded(share(progress.bytes_downloaded ?? 0, progress.bytes_to_download)));
  if (progress.from_cache) parts.push(strings.fromCache);
  if (progress.seconds_left) parts.push(strings.timeLeft(duration(progress.seconds_left)));
  return parts.join(", ");
}

// The cells of a strip, how many of them are there, and the share of everything that is: layers, or what of a download.
export function loadCells(progress: LoadProgress): { active: number; total: number; share: number } {
  if (progress.layers_total) return { active: progress.layers_active, total: progress.layers_total, share: progress.share };
  const come = progress.bytes_to_download ? (progress.bytes_downloaded ?? 0) / progress.bytes_to_download : 0;
  return { active: Math.floor(come * DOWNLOAD_CELLS), total: DOWNLOAD_CELLS, share: come };
}

// The layers that the foremost of this page's questions went through.
export function promptFront({ prompts }: LoadProgress): number {
  return Math.max(0, ...Object.values(prompts ?? {}));
}

function share(done: number, total: number): string {
  const [unit, name] = unitOf(total);
  return strings.ofBytes(decimal(done / unit, 1), decimal(total / unit, 1), name);
}

function unitOf(bytes: number): [number, string] {
  return bytes < 1e9 ? [1e6, "MB"] : [1e9, "GB"];
}

function rate(bytesPerSecond: number): string {
  const [unit, name] = unitOf(bytesPerSecond);
  return `${decimal(bytesPerSecond / unit, 1)} ${name}/s`;
}

function duration(seconds: number): string {
  const whole = Math.ceil(seconds);
  return whole < 100 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}
