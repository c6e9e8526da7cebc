import { useEffect, useRef } from "preact/hooks";
import { strings } from "../strings";
import { usePage } from "./context";

// Shown within an open dialog, since that makes all else inert, and above it.
export function NoticeView() {
  const { notice } = usePage();
  const current = notice.current.value;
  const popover = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (current) popover.current?.showPopover();
  }, [current]);
  if (!current) return null;
  return (
    <div id="notice" class="notice" role="status" popover="manual" ref={popover}>
      <span>{current.text}</span>
      {current.undo && (
        <button type="button" class="quiet" onClick={() => { notice.undo(); }}>{strings.undo}</button>
      )}
    </div>
  );
}
