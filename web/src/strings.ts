// The texts of the page in the language that its reader chose, or that the browser's reader prefers.

import { english } from "./strings/english";
import { german } from "./strings/german";

export type Strings = typeof english;

export const LANGUAGES = { en: "English", de: "Deutsch" } as const;
export type Language = keyof typeof LANGUAGES;

const TEXTS: Record<Language, Strings> = { en: english, de: german };
const KEY = "unicorn-language";

export const language: Language = chosen();
export const strings: Strings = TEXTS[language];

// All that is shown is made anew; what is kept stays.
export function speak(other: Language): void {
  try {
    localStorage.setItem(KEY, other);
    location.reload();
  } catch {
    location.search = `?language=${other}`; // in a browser that keeps nothing for this page
  }
}

function chosen(): Language {
  const asked = typeof location === "undefined" ? null : new URLSearchParams(location.search).get("language");
  const wanted = [storedLanguage(), asked, ...(typeof navigator === "undefined" ? [] : navigator.languages)];
  const found = wanted.map((tag) => tag?.slice(0, 2).toLowerCase()).find((tag) => tag !== undefined && Object.hasOwn(TEXTS, tag));
  return (found as Language | undefined) ?? "en";
}

function storedLanguage(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // a browser that keeps nothing for this page
  }
}
