// A program, with what copies it.

import type { Token } from "markdown-it";
import { strings } from "../strings";
import { withText } from "./elements";

export function codeOf(token: Token): string {
  return token.content.replace(/\n$/, "");
}

export function languageOf(token: Token): string {
  return /^[\w+#.-]+/.exec(token.info.trim())?.[0] ?? "";
}

export function codeBlock(content: string, language: string): HTMLElement {
  const block = document.createElement("div");
  block.className = "code";
  block.dataset["language"] = language;
  const head = document.createElement("div");
  head.className = "code-head";
  const copy = withText("button", strings.copy) as HTMLButtonElement;
  copy.type = "button";
  copy.className = "copy";
  copy.setAttribute("aria-label", strings.copyCode);
  copy.addEventListener("click", () => void copyFrom(block, copy));
  head.append(withText("span", language), copy);
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // wide code scrolls, also by keyboard
  pre.dir = "ltr";
  const code = document.createElement("code");
  code.append(document.createTextNode(content));
  pre.append(code);
  block.append(head, pre);
  return block;
}

async function copyFrom(block: HTMLElement, button: HTMLButtonElement): Promise<void> {
  const isCopied = await copyText(block.querySelector("code")?.textContent ?? "");
  button.textContent = isCopied ? strings.copied : strings.copyFailed;
  setTimeout(() => (button.textContent = strings.copy), 1500);
}

// Returns whether the text is on the clipboard; a page that is not from this machine may have none without https.
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
