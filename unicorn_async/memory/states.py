"""How many states of fixed size there is memory for: sequences' in a step, copies of them, and spare ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.config import MAX_PROPOSED, MAX_SPECULATING, SpeculationMode

if TYPE_CHECKING:
    from unicorn_async.config import EngineConfig
    from unicorn_async.models.spec import ModelSpec

_SHARE = 1 / 4  # of what is left beside weights and workspace, for sequences that nobody asked for
_COPIES_SHARE = 1 / 8  # of what is left beside these
_MOST_COPIES = 64
_SPARE_SHARE = 1 / 16
_MOST_SPARE = MAX_SPECULATING * (1 + MAX_PROPOSED)
_LEAST_SPARE = 2  # a token, and one that is proposed behind it
_WITH_DRAFT = 4  # at least, where there is a draft model


@dataclass(frozen=True, slots=True)
class StatePlan:
    """Sequences of a step, copies that are kept of states, and spare ones for what is proposed.

    `nbytes` is what all layers keep of one sequence.
    """

    num_seqs: int
    num_copies: int
    nbytes: int
    num_spare: int = 0

    @property
    def num_states(self) -> int:
        """States that each layer has room for, those of running sequences first."""
        return self.num_seqs + self.num_copies + self.num_spare

    @property
    def can_go_back(self) -> bool:
        """Whether steps can check proposed tokens: nothing is kept of all tokens before, or there are spare states."""
        return not self.nbytes or self.num_spare > 0

    def spare_text(self, *, predicts: bool) -> str:
        """Say why nothing is proposed, and what to do without if the model `predicts` itself."""
        return (
            f"no tokens are proposed: a step that checks them needs {_LEAST_SPARE} states of {self.nbytes:,} bytes more"
            " at least, beside those of sequences and the KV cache"
            f"{'; --draft none leaves out the layer that predicts a token more' if predicts else ''}"
        )

    def text(self, usual: int) -> str:
        """Say why there are fewer than the `usual` number of sequences."""
        return (
            f"a step has {self.num_seqs} sequences at most, not {usual}: the state of each takes {self.nbytes:,} bytes"
            " of the memory that the KV cache needs, too; --max-num-seqs decides it"
        )


def plan_states(model: ModelSpec, options: EngineConfig, *, left_bytes: int, least_bytes: int) -> StatePlan:
    """Choose for the `left_bytes` beside weights and workspace, of which others need the `least_bytes`.

    As many sequences as are asked for, whether they fit or not; if that is left open, the default's number or fewer.
    Copies are kept where sequences share what they begin with, and spare ones are there where tokens are proposed.
    """
    nbytes = sum(layer.fixed.nbytes for layer in model.layers if layer.fixed is not None)
    if not nbytes:
        return StatePlan(options.max_seqs, 0, 0)
    num_seqs = options.max_seqs
    if options.max_num_seqs is None:
        num_seqs = min(num_seqs, max(int(_SHARE * left_bytes) // nbytes, 1))
    num_copies = num_spare = 0
    left = left_bytes - num_seqs * nbytes
    if options.speculation is not SpeculationMode.OFF and not options.attends_elsewhere:
        num_spare = min(int(min(_SPARE_SHARE * left, left - least_bytes)) // nbytes, _MOST_SPARE)
        num_spare = num_spare if num_spare >= _LEAST_SPARE else 0
        if options.draft is not None:
            num_spare = max(num_spare, _WITH_DRAFT)
        left -= num_spare * nbytes
    if options.prefix_cache and not options.attends_elsewhere:
        num_copies = min(int(min(_COPIES_SHARE * left, left - least_bytes)) // nbytes, _MOST_COPIES)
    return StatePlan(num_seqs, max(num_copies, 0), nbytes, num_spare)
