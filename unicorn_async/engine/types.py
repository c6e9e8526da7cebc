"""What goes in and out of an engine; the server knows it by `EngineAPI` alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unicorn_async.config import SamplingParams
from unicorn_async.loader.progress import LoadProgress
from unicorn_async.scheduler.request import FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.tokenizer import Tokenizer

__all__ = ["EngineAPI", "EngineStats", "FinishReason", "LoadProgress", "SamplingParams", "Token"]


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    `text` is what the token adds to the answer; it is empty while a character or a possible stop string is incomplete,
    and for an end token. `finish_reason` is set on the last token of an answer alone.
    """

    id: int
    text: str
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, str, float], ...] = ()
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine was opened, and what it holds now."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    steps: int
    tokens_generated: int
    tokens_prefilled: int
    preemptions: int
    host_us_per_step: float
    device_s: float


class EngineAPI(Protocol):
    """What a server or another consumer of tokens may rely on."""

    @property
    def model_name(self) -> str:
        """Name to show: the directory's name, or the name that was asked for."""

    @property
    def device(self) -> DeviceInfo:
        """The device that runs the model."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernel variants that the model runs on."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    @property
    def max_context(self) -> int:
        """Tokens that a prompt and its answer may have together."""

    @property
    def progress(self) -> LoadProgress:
        """How far the model is loaded now."""

    def load_progress(self) -> AsyncIterator[LoadProgress]:
        """Yield progress until the model is loaded; raises what made the load fail."""

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams = ...,
        *,
        request_id: str | None = None,
    ) -> AsyncGenerator[Token, None]:
        """Generate tokens; closing the generator cancels the request.

        Raises:
            RequestError: at the first iteration, when the request is refused.
            UnicornError: when the engine fails or is closed meanwhile.
        """

    async def logits(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits after every token, (tokens, vocabulary)."""

    def stats(self) -> EngineStats:
        """Return counters."""
