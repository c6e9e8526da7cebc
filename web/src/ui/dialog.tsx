import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { NoticeView } from "./notice_view";

interface DialogProps {
  id: string;
  labelledBy: string;
  onClose: () => void;
  children: ComponentChildren;
}

// A modal dialog, open as long as it is part of the page; Escape and a press beside it close it.
export function Dialog({ id, labelledBy, onClose, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog
      id={id}
      ref={dialog}
      aria-labelledby={labelledBy}
      onClose={onClose}
      onClick={(event) => {
        const box = event.currentTarget.getBoundingClientRect();
        const isBeside =
          event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom;
        // On the dialog itself the target is one of its parts or its padding.
        if (event.target === event.currentTarget && isBeside) event.currentTarget.close();
      }}
    >
      {children}
      <NoticeView />
    </dialog>
  );
}
