import { fileURLToPath } from "node:url";

// What the build names, from the sources.
const file = (name) => JSON.stringify(fileURLToPath(new URL(`src/text/${name}.ts`, import.meta.url)));

export default { define: { HIGHLIGHT_FILE: file("highlight"), FORMULA_FILE: file("formula") } };
