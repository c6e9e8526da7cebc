import { useLayoutEffect, useRef } from "preact/hooks";
import { codeBlock } from "../text/code_block";
import { colour } from "../text/decoration";
import { changeText } from "../text/elements";
import { indented } from "../text/json";

// JSON that grows, as a program: once it has ended with its lines indented, and in colours.
export function JsonView({ json, isGrowing }: { json: string; isGrowing: boolean }) {
  const holder = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const shown = holder.current?.querySelector("code")?.firstChild;
    if (isGrowing && shown instanceof Text) {
      changeText(shown, json);
      return;
    }
    const block = codeBlock(isGrowing ? json : indented(json), "json");
    holder.current?.replaceChildren(block);
    if (!isGrowing) void colour(block);
  }, [json, isGrowing]);
  return <div class="body" ref={holder} />;
}
