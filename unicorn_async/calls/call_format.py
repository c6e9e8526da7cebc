"""How a model writes calls, told by its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CallKind(Enum):
    """What a call looks like in the text of an answer."""

    TAGGED = "tagged"  # <tool_call>{"name": …, …}</tool_call>: Hermes, Qwen, and whom the system text tells so
    BARE = "bare"  # {"name": …, "parameters": …} is the whole answer: Llama 3
    LISTED = "listed"  # [TOOL_CALLS][{"name": …, "arguments": …}]: Mistral
    NAMED = "named"  # [TOOL_CALLS]name[ARGS]{…}: Mistral's later templates


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A form of calls; where the template `takes_tools`, it tells the model of them, else the system text does."""

    kind: CallKind
    takes_tools: bool

    @property
    def opening(self) -> str:
        """What begins calls; none where they are the whole answer."""
        return {CallKind.TAGGED: "<tool_call>", CallKind.BARE: ""}.get(self.kind, "[TOOL_CALLS]")

    @property
    def closing(self) -> str:
        """What ends a call; none where the end of its JSON does."""
        return "</tool_call>" if self.kind is CallKind.TAGGED else ""

    @property
    def arguments_key(self) -> str:
        """The key of the arguments beside that of the name."""
        return "parameters" if self.kind is CallKind.BARE else "arguments"

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings that control tokens may stand for, which otherwise have no text."""
        named = ("[ARGS]", "[CALL_ID]") if self.kind is CallKind.NAMED else ()
        bare = ("<|python_tag|>",) if self.kind is CallKind.BARE else ()
        return tuple(text for text in (self.opening, self.closing, *named, *bare) if text)


def call_format(template: str | None) -> CallFormat:
    """Return the form that a model's chat template writes calls in, or the general one for those that know of none."""
    if template is not None and "tools" in template:
        if "[TOOL_CALLS]" in template:
            return CallFormat(CallKind.NAMED if "[ARGS]" in template else CallKind.LISTED, takes_tools=True)
        if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
            return CallFormat(CallKind.TAGGED, takes_tools=True)
        if '"parameters"' in template and "ipython" in template:
            return CallFormat(CallKind.BARE, takes_tools=True)
    return CallFormat(CallKind.TAGGED, takes_tools=False)
