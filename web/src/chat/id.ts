// A name that no other tab or browser gives; crypto.randomUUID is missing where the page comes over plain HTTP.
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
