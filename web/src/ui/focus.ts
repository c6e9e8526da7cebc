// Where the keyboard goes on when what it was on has gone: in a dialog or a drawer the next item of a list, or the head;
// else the place where one writes. Who has no keyboard is given none on the screen: the conversation is where they go on.

import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

const FOCUSABLE = "button:enabled, input:enabled, select:enabled, textarea:enabled, summary, a[href], [tabindex='0']";

interface Place {
  readonly room: Element; // a dialog or a drawer
  readonly list: Element | null;
  readonly index: number; // of the list's item that had it
}

export function useKeptFocus(prompt: RefObject<HTMLElement | null>, conversation: RefObject<HTMLElement | null>): void {
  useEffect(() => {
    let last: Element | null = null;
    let place: Place | null = null;
    const focused = ({ target }: FocusEvent): void => {
      last = target instanceof Element ? target : null;
      place = last && placeOf(last);
    };
    const observer = new MutationObserver(() => {
      if (!last || last.isConnected || document.activeElement !== document.body) return;
      const next = place?.room.isConnected ? nearest(place) : hasKeyboard() ? prompt.current : conversation.current;
      last = null;
      next?.focus({ preventScroll: true });
    });
    document.addEventListener("focusin", focused);
    observer.observe(document.body, { childList: true, subtree: true });
    return () => {
      document.removeEventListener("focusin", focused);
      observer.disconnect();
    };
  }, []);
}

// What is written in a field that is there for a while begins there, and goes back to the button that brought the field.
export function useFocusBack(isOpen: boolean, field: RefObject<HTMLElement | null>, button: RefObject<HTMLElement | null>): void {
  const wasOpen = useRef(isOpen);
  useLayoutEffect(() => {
    if (isOpen !== wasOpen.current) (isOpen ? field : button).current?.focus();
    wasOpen.current = isOpen;
  }, [isOpen]);
}

function placeOf(element: Element): Place | null {
  const room = element.closest("dialog, aside");
  const item = element.closest("li");
  const list = item?.parentElement ?? null;
  return room && { room, list, index: list && item ? [...list.children].indexOf(item) : 0 };
}

function nearest({ room, list, index }: Place): HTMLElement | null {
  const beside = list?.children[Math.min(index, list.children.length - 1)]?.querySelector<HTMLElement>(FOCUSABLE);
  if (beside) return beside;
  const places = [...room.querySelectorAll<HTMLElement>(`[tabindex="-1"], ${FOCUSABLE}`)];
  return places.find((place) => hasKeyboard() || !place.matches("input, textarea")) ?? null;
}

// A keyboard on the screen would cover what is there.
export function hasKeyboard(): boolean {
  return !matchMedia("(pointer: coarse)").matches;
}
