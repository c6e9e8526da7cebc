// Numbers as the page's language writes them.

export function decimal(value: number, digits: number): string {
  const language = typeof document === "undefined" ? "en" : document.documentElement.lang || "en";
  return new Intl.NumberFormat(language, {
    minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: false,
  }).format(value);
}
