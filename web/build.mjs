// Builds the page from src/ into built/: one script, one style sheet and the icon, each named by a hash of its content,
// and beside each what it is compressed. built/sources.sha256 says which sources it was made of.

import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const ROOT = fileURLToPath(new URL(".", import.meta.url));
const BUILT = join(ROOT, "built");
const SETTINGS = ["build.mjs", "package-lock.json", "package.json", "tsconfig.json"];

function sha256(content) {
  return createHash("sha256").update(content).digest("hex");
}

// All that the page is made of, in the order of the paths' characters; tests are no part of it.
function sourceHash() {
  const sources = readdirSync(join(ROOT, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && !entry.name.includes(".test."))
    .map((entry) => join(entry.parentPath, entry.name).slice(ROOT.length).replaceAll("\\", "/"));
  const lines = [...SETTINGS, ...sources].sort().map((path) => `${sha256(readFileSync(join(ROOT, path)))}  ${path}\n`);
  return sha256(lines.join(""));
}

function write(name, content) {
  writeFileSync(join(BUILT, name), content);
  const compressed = gzipSync(content, { level: 9 });
  writeFileSync(join(BUILT, `${name}.gz`), compressed);
  return compressed.length;
}

const bytesOf = new Map(); // compressed

function writeHashed(name, content) {
  const suffix = extname(name);
  const hashed = `/${name.slice(0, -suffix.length)}-${sha256(content).slice(0, 12)}${suffix}`;
  bytesOf.set(hashed, write(hashed, content));
  return hashed;
}

async function bundle(name, define = {}) {
  const result = await build({
    entryPoints: [join(ROOT, "src", name)],
    bundle: true,
    format: "esm",
    target: "es2022",
    minify: true,
    legalComments: "eof",
    charset: "utf8",
    write: false,
    tsconfig: join(ROOT, "tsconfig.json"),
    define: Object.fromEntries(Object.entries(define).map(([key, value]) => [key, JSON.stringify(value)])),
    logLevel: "warning",
  });
  return Buffer.from(result.outputFiles[0].contents);
}

rmSync(BUILT, { recursive: true, force: true });
mkdirSync(BUILT);
const later = {
  HIGHLIGHT_FILE: writeHashed("highlight.js", await bundle("text/highlight.ts")),
  FORMULA_FILE: writeHashed("formula.js", await bundle("text/formula.ts")),
};
const filled = (name, names) =>
  readFileSync(join(ROOT, "src", name), "utf8").replace(/\{(\w+)\}/g, (_, key) => names[key]);
const icons = {
  icon: writeHashed("icon.svg", readFileSync(join(ROOT, "src", "icon.svg"))),
  icon192: writeHashed("icon-192.png", readFileSync(join(ROOT, "src", "icon-192.png"))),
  icon512: writeHashed("icon-512.png", readFileSync(join(ROOT, "src", "icon-512.png"))),
};
const manifest = writeHashed("manifest.webmanifest", filled("manifest.webmanifest", icons));
const names = {
  manifest,
  ...icons,
  app: writeHashed("app.js", await bundle("main.tsx", later)),
  style: writeHashed("style.css", await bundle("style.css")),
};
const indexBytes = write("index.html", filled("index.html", names));
writeFileSync(join(BUILT, "sources.sha256"), `${sourceHash()}\n`);
// What is not among these is loaded when something needs it.
const total = [names.app, names.style, names.icon].reduce((sum, name) => sum + bytesOf.get(name), indexBytes);
console.log(`built/: ${total} bytes compressed for the first load`);
