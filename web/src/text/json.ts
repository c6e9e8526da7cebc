// JSON for people to read.

const INDENT = "  ";
const MAX_CHARS = 200_000;
const MAX_DEPTH = 50;
const PARTS = /"[^"\\]*(?:\\.[^"\\]*)*"|\{\s*\}|\[\s*\]|[[\]{},:]|[^\s[\]{},:"]+/g; // an empty list or object is one

// Returns JSON with a line for each of its values; as it is where it is none, or more than anybody reads. Nothing in it
// changes but the spaces between: numbers keep all their digits.
export function indented(json: string): string {
  if (json.length > MAX_CHARS || !isJson(json)) return json;
  let made = "";
  let depth = 0;
  for (const [part] of json.matchAll(PARTS)) {
    if (part === "{" || part === "[") {
      depth += 1;
      if (depth > MAX_DEPTH) return json;
      made += `${part}\n${INDENT.repeat(depth)}`;
    } else if (part === "}" || part === "]") {
      depth -= 1;
      made += `\n${INDENT.repeat(depth)}${part}`;
    } else if (part === ",") {
      made += `,\n${INDENT.repeat(depth)}`;
    } else if (part === ":") {
      made += ": ";
    } else {
      made += /^[[{]/.test(part) ? part.charAt(0) + part.charAt(part.length - 1) : part;
    }
  }
  return made;
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
