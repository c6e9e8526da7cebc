// Every text that the page shows by itself.

export const strings = {
  table: "Table",
  copy: "Copy",
  copyCode: "Copy the code",
  copied: "Copied",
  copyFailed: "Not copied",
};
