"""What a request says of the model's thoughts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.calls.harmony import EFFORTS as HARMONY_EFFORTS
from unicorn_async.calls.harmony import is_harmony, marks_of
from unicorn_async.server.protocol.channels import ChannelSplitter
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.thoughts import ThoughtSplitter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.server.protocol.fields import Fields
    from unicorn_async.server.protocol.thoughts import Splitter
    from unicorn_async.tokenizer import Tokenizer

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES = ("auto", "concise", "detailed")
FORMATS = ("auto", "deepseek", "none")
SWITCHES = ("enable_thinking", "thinking")  # as templates call what switches their models' thoughts on and off
EFFORT_NAME = "reasoning_effort"
_TAIL = 8  # tokens at a prompt's end that may be the opening mark


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How much the model is to think, and whether its thoughts are told apart from the answer."""

    effort: str | None = None  # None = as the template has it
    summary: str | None = None
    is_apart: bool = True
    param: str = "reasoning.effort"  # where the request says it

    def variables(self, tokenizer: Tokenizer) -> dict[str, object]:
        """Return what the model's template has to know for this effort.

        Raises:
            ApiError: the model can't think, or can't be kept from it, or not as much.
        """
        if self.effort is None:
            return {}
        if is_harmony(tokenizer.chat_template) and self.effort not in HARMONY_EFFORTS:
            why = f"this model takes {', '.join(HARMONY_EFFORTS)}, got {self.effort!r}"
            raise ApiError(f"{self.param}: {why}", code="unsupported_value", param=self.param)
        names = tokenizer.template_names
        switches = [name for name in SWITCHES if name in names]
        found: dict[str, object] = {name: self.effort != "none" for name in switches}
        if EFFORT_NAME in names and (self.effort != "none" or not switches):
            found[EFFORT_NAME] = self.effort
        if not found and tokenizer.thinks is (self.effort == "none"):
            why = "always thinks before it answers" if tokenizer.thinks else "does not think before it answers"
            raise ApiError(f"{self.param}: this model {why}", code="unsupported_value", param=self.param)
        return found

    def splitter(
        self, tokenizer: Tokenizer, prompt: Sequence[int], tools: frozenset[str] = frozenset()
    ) -> Splitter | None:
        """Return what tells thoughts and answer apart; None where that is not wanted, or there is nothing to tell.

        Where an answer is in channels, calls of `tools` are told apart, too.
        """
        if is_harmony(tokenizer.chat_template):
            return ChannelSplitter(marks_of(tokenizer.control_id), tools, apart=self.is_apart)
        if not self.is_apart or not tokenizer.thinks:
            return None
        tail = tokenizer.decode(prompt[-_TAIL:], skip_special=False).rstrip()
        marks = tokenizer.thinking_marks
        return ThoughtSplitter(is_open=tail.endswith(marks[0]), marks=marks)


def parse_reasoning(fields: Fields) -> Reasoning:
    """Check the `reasoning` of a Responses request.

    Raises:
        ApiError: it asks for what is not done here.
    """
    is_apart = _is_apart(fields)
    given = fields.object("reasoning")
    if given is None:
        return Reasoning(is_apart=is_apart)
    given.refuse_unknown(("context", "effort", "generate_summary", "mode", "summary"))
    for key in ("summary", "generate_summary"):
        if given.choice(key, SUMMARIES) not in (None, "auto"):
            raise given.unsupported(key, "thoughts are not summarised here")
    if given.choice("context", ("auto", "current_turn", "all_turns")) == "all_turns":
        raise given.unsupported("context", "the model's template decides which thoughts it sees again")
    if given.string("mode") not in (None, "standard"):
        raise given.unsupported("mode", "there is the standard mode alone")
    return Reasoning(given.choice("effort", EFFORTS), given.string("summary"), is_apart)


def parse_effort(fields: Fields) -> Reasoning:
    """Check what a chat request says; raises as `parse_reasoning`."""
    return Reasoning(fields.choice("reasoning_effort", EFFORTS), None, _is_apart(fields), "reasoning_effort")


def _is_apart(fields: Fields) -> bool:
    """`reasoning_format` is llama-server's; `none` leaves thoughts and their marks in the text."""
    return fields.choice("reasoning_format", FORMATS) != "none"
