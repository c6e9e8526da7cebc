"""What a request says of the model's thoughts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.server.protocol.fields import Fields

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES = ("auto", "concise", "detailed")


def check_reasoning(fields: Fields) -> None:
    """Check the `reasoning` of a Responses request.

    Raises:
        ApiError: it asks for what the model can't do.
    """
    fields.refuse_unknown(("context", "effort", "generate_summary", "mode", "summary"))
    check_effort(fields, "effort")
    for key in ("summary", "generate_summary"):
        if fields.choice(key, SUMMARIES) not in (None, "auto"):
            raise fields.unsupported(key, "thoughts are not summarised here")
    if fields.choice("context", ("auto", "current_turn", "all_turns")) == "all_turns":
        raise fields.unsupported("context", "the model's template decides which thoughts it sees again")
    if fields.string("mode") not in (None, "standard"):
        raise fields.unsupported("mode", "there is the standard mode alone")


def check_effort(fields: Fields, key: str) -> None:
    """Refuse any effort: the model does not think before it answers."""
    if fields.choice(key, EFFORTS) not in (None, "none"):
        raise fields.unsupported(key, "this model does not think before it answers")
