"""Steps of about equally much work, as times of steps are kept and estimated. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.hybrid.batch_split import num_keys

if TYPE_CHECKING:
    from unicorn_async.scheduler.batch import Batch


class StepClass(NamedTuple):
    """How many sequences and tokens a step has, and how many keys a token sees, each up to this power of two."""

    sequences: int
    tokens: int
    keys: int

    @classmethod
    def of(cls, batch: Batch) -> StepClass:
        """Return a batch's class."""
        keys = num_keys(batch) // batch.num_tokens
        sequences = len({id(item.sequence) for item in batch.scheduled})
        return cls(*map(_rounded_up, (sequences, batch.num_tokens, keys)))

    def text(self) -> str:
        """Return it for people."""
        if self.tokens > self.sequences:
            return f"{self.tokens} tokens of prompts, {_counted(self.sequences)}, at {self.keys} keys"
        return f"{_counted(self.sequences)} at {self.keys} keys"


def _counted(sequences: int) -> str:
    return "1 sequence" if sequences == 1 else f"{sequences} sequences"


def _rounded_up(count: int) -> int:
    return 1 << (count - 1).bit_length()
