"""What a step on the device gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from unicorn_async.scheduler.batch import Batch, ScheduledSequence


class SampledToken(NamedTuple):
    """A token id with its log-probability and the most probable alternatives, where these were asked for."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class TimeSpan(Protocol):
    """A time in which a device worked, in seconds of `time.perf_counter`."""

    @property
    def start_s(self) -> float:
        """When it began."""

    @property
    def stop_s(self) -> float:
        """When it was seen to end."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step sampled.

    `tokens` has one entry for each part of the batch that samples, in order. `logits` has, for each evaluation
    request in the step, the logits (num_tokens, vocabulary) of the positions that the step computed. `device_s` is
    the time between the first and the last operation on the device. `device_start_s` is when the first began, by a
    clock of the device's own: only beside that of other steps it says something. A step that `waited` for layers to
    be loaded has their time in its own; one `was_recorded` had to wait until its commands were. `spans` are when
    the device of the model and another one that attends worked, as the host saw it, where there are two. `pooled`
    has the embeddings of the sequences that have ended with the step. `predicted` is what the model's own layer says
    comes behind each of the tokens, none where it was not asked; what it says behind a first token counts for the last
    right one of a sequence alone, and took `drafting_s` of `device_s`.
    """

    batch: Batch
    tokens: tuple[SampledToken, ...]
    logits: tuple[tuple[ScheduledSequence, NDArray[np.float32]], ...]
    device_s: float
    device_start_s: float = 0.0
    waited: bool = False
    was_recorded: bool = False
    spans: tuple[Sequence[TimeSpan], Sequence[TimeSpan]] = ((), ())
    pooled: tuple[tuple[ScheduledSequence, NDArray[np.float32]], ...] = ()
    predicted: tuple[tuple[int, ...], ...] = ()
    drafting_s: float = 0.0
