import js from "@eslint/js";
import { defineConfig, globalIgnores } from "eslint/config";
import typescript from "typescript-eslint";

export default defineConfig(
  globalIgnores(["built/", "node_modules/"]),
  {
    files: ["*.{js,mjs}"],
    extends: [js.configs.recommended],
    languageOptions: { globals: { console: "readonly", Buffer: "readonly", URL: "readonly" } },
  },
  {
    files: ["src/**/*.{ts,tsx}"],
    extends: [js.configs.recommended, typescript.configs.strictTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      // What would make text into markup or a program.
      "no-restricted-properties": [
        "error",
        { property: "innerHTML", message: "Text becomes text nodes." },
        { property: "outerHTML", message: "Text becomes text nodes." },
        { property: "insertAdjacentHTML", message: "Text becomes text nodes." },
      ],
      "no-restricted-syntax": [
        "error",
        { selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']", message: "Text becomes text nodes." },
      ],
    },
  },
  { files: ["src/**/*.test.ts"], rules: { "no-restricted-properties": "off" } },
);
