"""What Chat Completions and Completions have in common: several choices, one object around them, their usage."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from unicorn_async.engine.types import FinishReason
from unicorn_async.server.protocol.answer import Answer
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.hints import SERVED_TIER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.server.protocol.errors import ErrorInfo
    from unicorn_async.server.protocol.hints import UsageOptions

FINISH_REASON = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.CANCELLED: "stop"}


class Choice(Answer, Protocol):
    """One of the answers to a request."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer so far."""

    @property
    def num_cached(self) -> int:
        """Tokens of its prompt that were computed before."""

    @property
    def predicted(self) -> tuple[int, int]:
        """Tokens of the request's prediction that were proposed: the right ones, and the others."""

    @property
    def num_thought(self) -> int:
        """Those of them that are the model's thoughts."""

    def to_choice(self) -> dict[str, object]:
        """Return the whole answer as an entry of `choices`."""


ChoiceT = TypeVar("ChoiceT", bound=Choice)


class CompletionHead:
    """What stands at the beginning of each object of one completion."""

    def __init__(self, completion_id: str, model: str, fingerprint: str, usage: UsageOptions) -> None:
        self.id = completion_id
        self.usage = usage
        self._fields: dict[str, object] = {
            "id": completion_id,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }

    def fields(self, kind: str) -> dict[str, object]:
        """Return the first fields of an object of this kind."""
        tier: dict[str, object] = {"service_tier": SERVED_TIER} if kind.startswith("chat.") else {}
        return {"object": kind, **self._fields, **tier}

    def chunk(self, kind: str, choice: dict[str, object], counts: tuple[int, int]) -> str:
        """Return a chunk with a piece of one choice, which has so many tokens of a prompt, and of an answer so far."""
        return encode_object({**self.fields(kind), "choices": [choice], **self.usage_of(counts)})

    def usage_of(self, counts: tuple[int, int]) -> dict[str, object]:
        """Return what a chunk has of the usage, where it is wanted."""
        if not self.usage.at_end:
            return {}
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        return {"usage": dict(zip(names, (*counts, sum(counts)), strict=True)) if self.usage.in_each else None}


class CompletionObject(Generic[ChoiceT]):
    """The choices of one request and what is said of all of them; `num_input` are the tokens of all prompts."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, head: CompletionHead, choices: Sequence[ChoiceT], num_input: int) -> None:
        self.head = head
        self.choices = choices
        self._num_input = num_input

    @property
    def error(self) -> ErrorInfo | None:
        """What made one of the answers fail, the first of them."""
        return next((choice.error for choice in self.choices if choice.error is not None), None)

    def closing(self) -> Sequence[str]:
        """Return what follows the last chunk of all: the usage, if it was asked for."""
        if not self.head.usage.at_end or self.error is not None:
            return ()
        return [encode_object({**self.head.fields(self.chunk_kind), "choices": [], "usage": self._usage()})]

    def to_json(self) -> dict[str, object]:
        """Return the whole object."""
        return {**self.head.fields(self.kind), "choices": self._told(), "usage": self._usage()}

    def _told(self) -> list[dict[str, object]]:
        return [choice.to_choice() for choice in self.choices]

    def _num_cached(self) -> int:
        """Of the prompt's tokens: what the first answer found is all that was there before the request."""
        return self.choices[0].num_cached

    def _usage(self) -> dict[str, object]:
        num_output = sum(choice.num_tokens for choice in self.choices)
        return {
            "prompt_tokens": self._num_input,
            "completion_tokens": num_output,
            "total_tokens": self._num_input + num_output,
            "prompt_tokens_details": {"cached_tokens": self._num_cached(), "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": sum(choice.num_thought for choice in self.choices),
                "audio_tokens": 0,
                "accepted_prediction_tokens": sum(choice.predicted[0] for choice in self.choices),
                "rejected_prediction_tokens": sum(choice.predicted[1] for choice in self.choices),
            },
        }
