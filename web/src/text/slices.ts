// Work that takes a while, in slices of time, between which the page answers to whoever reads it.

const SLICE_MS = 8;
let end = 0; // of the slice that runs

// Resolves at once within a slice, else when another one begins.
export async function pause(): Promise<void> {
  if (performance.now() < end) return;
  await new Promise((resolve) => setTimeout(resolve));
  end = performance.now() + SLICE_MS;
}
