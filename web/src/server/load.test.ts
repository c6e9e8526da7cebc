import { expect, test } from "vitest";
import { loadCells, loadNumbers, promptFront } from "./load";

const PROGRESS = {
  bytes_loaded: 2.1e9,
  bytes_total: 15.6e9,
  bytes_per_s: 1.9e9,
  layers_active: 12,
  layers_total: 62,
  seconds_left: 7,
  share: 0.13,
  done: false,
};

test("a load's numbers have one unit, and say what is left", () => {
  expect(loadNumbers(PROGRESS)).toBe("2.1 of 15.6 GB, 1.9 GB/s, 12 of 62 layers, 7 s left");
});

test("what nobody knows yet is left out, and long times are in minutes", () => {
  expect(loadNumbers({ ...PROGRESS, bytes_per_s: null, seconds_left: null })).toBe("2.1 of 15.6 GB, 12 of 62 layers");
  expect(loadNumbers({ ...PROGRESS, seconds_left: 200.5 })).toContain("3 min 21 s left");
});

test("a model that is downloaded meanwhile says how far that is", () => {
  expect(loadNumbers({ ...PROGRESS, bytes_to_download: 16e9, bytes_downloaded: 2.5e9 })).toBe(
    "2.1 of 15.6 GB, 1.9 GB/s, 12 of 62 layers, 2.5 of 16.0 GB downloaded, 7 s left",
  );
  expect(loadNumbers({ ...PROGRESS, bytes_to_download: 0, bytes_downloaded: 0 })).not.toContain("downloaded");
});

test("before a model's headers have come there is its download alone", () => {
  const early = { ...PROGRESS, bytes_total: 0, bytes_loaded: 0, bytes_per_s: null, layers_active: 0, layers_total: 0 };
  const load = { ...early, share: 0, seconds_left: null, bytes_to_download: 16e9, bytes_downloaded: 4e9 };
  expect(loadNumbers(load)).toBe("4.0 of 16.0 GB downloaded");
  expect(loadCells(load)).toEqual({ active: 16, total: 64, share: 0.25 });
  expect(loadNumbers({ ...load, bytes_to_download: 0, bytes_downloaded: 0 })).toBe("");
  expect(loadCells({ ...load, bytes_to_download: 0, bytes_downloaded: 0 }).active).toBe(0);
  expect(loadCells(PROGRESS)).toEqual({ active: 12, total: 62, share: 0.13 });
});

test("weights that come from the cache are told, and how far the foremost question is", () => {
  expect(loadNumbers({ ...PROGRESS, from_cache: true })).toContain("12 of 62 layers, from the cache, 7 s left");
  expect(promptFront({ ...PROGRESS, prompts: { a: 3, b: 7 } })).toBe(7);
  expect(promptFront(PROGRESS)).toBe(0);
});
