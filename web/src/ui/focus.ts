// Where the keyboard goes on when what it was on has gone: a place near that in a dialog or a drawer, else the place where
// one writes. Without a keyboard there the conversation has it, since that would bring one on the screen.

import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

const FOCUSABLE = "button:enabled, input:enabled, select:enabled, textarea:enabled, summary, a[href], [tabindex='0']";

interface Place {
  readonly parent: Element;
  readonly index: number; // of the child that had it
}

export function useKeptFocus(prompt: RefObject<HTMLElement | null>, conversation: RefObject<HTMLElement | null>): void {
  useEffect(() => {
    let last: Element | null = null;
    let places: Place[] = [];
    const focused = ({ target }: FocusEvent): void => {
      last = target instanceof Element ? target : null;
      places = last ? placesOf(last) : [];
    };
    const observer = new MutationObserver(() => {
      if (!last || last.isConnected || document.activeElement !== document.body) return;
      const next = nearest(places) ?? (matchMedia("(hover: none)").matches ? conversation.current : prompt.current);
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

// The places of an element in those around it, as far as a dialog or a drawer; none outside of these.
function placesOf(element: Element): Place[] {
  const end = element.closest("dialog, aside");
  const places: Place[] = [];
  for (let child = element; end && child !== end && child.parentElement; child = child.parentElement) {
    places.push({ parent: child.parentElement, index: [...child.parentElement.children].indexOf(child) });
  }
  return places;
}

function nearest(places: Place[]): HTMLElement | null {
  for (const { parent, index } of places) {
    if (!parent.isConnected) continue;
    const beside = parent.children[Math.min(index, parent.children.length - 1)];
    const found = beside?.querySelector<HTMLElement>(FOCUSABLE) ?? parent.querySelector<HTMLElement>(FOCUSABLE);
    if (found) return found;
  }
  return null;
}
