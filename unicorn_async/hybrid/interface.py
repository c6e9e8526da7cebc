"""Attention on another device: the one interface between it and the device that runs the rest of the model.

The near device runs the model. For each layer it writes rotated q, and the new tokens' k and v, into an exchange, and
reads the result from there. The far device attends and owns the KV cache. In between the near device has another half
of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.config import KVDType
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.ops.kv_cache import KVCache
    from unicorn_async.scheduler.batch import Batch

NUM_HALVES = 2


class Exchange(Protocol):
    """Where the near device hands over a half's layer; all is in its own memory.

    Rows are tokens in the batch's order. `q` is the address of (tokens, num_heads * head_dim) f32, `new_kv` has k and
    v, (tokens, num_kv_heads, head_dim) each. What is recorded is for one layer, and for the passes of one turn.
    """

    q: int
    new_kv: KVCache
    nbytes: int  # of the near device's memory

    def record_filled(self, recorder: CommandRecorder, num_tokens: int, *, turn: int, layer: int) -> None:
        """Record what is to be done once q, k and v of so many tokens are written, up to the barrier for the host."""

    def record_result(
        self, recorder: CommandRecorder, num_tokens: int, attended: ArenaSlice, *, turn: int, layer: int
    ) -> None:
        """Record how the result gets to `attended`, (tokens, num_heads * head_dim) f32; a barrier is left to others."""


class AttentionPass(Protocol):
    """The attention of one half of one step, to be gone through layer by layer, in order."""

    async def attend(self, layer: int) -> None:
        """Compute a layer's attention: the exchange is filled, and what fills it is done; on return so is the result.

        The half's keys and values are in the cache then, for halves that come after it.

        Raises:
            DeviceError: the far device failed; nothing more will come of this pass.
        """


class FarAttention(Protocol):
    """A far device that attends; `kv_dtype` is the type in which it takes k and v."""

    kv_dtype: KVDType

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """One for each half."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of what runs on the far device."""

    @property
    def recoveries(self) -> int:
        """How often the far device failed and began anew; the steps under way took long because of that."""

    @property
    def run_s(self) -> float | None:
        """How long a run of the far device may take by a guess; None where runs are not cut by their time."""

    def near_kernels(self) -> tuple[KernelRequest, ...]:
        """Name the pipelines that the near device needs to fill the exchanges."""

    def prepare_kernels(self) -> None:
        """Compile what the far device needs, in the calling thread, which a cancellation may leave behind.

        Raises:
            DeviceError: it lacks what a kernel needs, or was closed.
        """

    def save_kernels(self) -> None:
        """Keep on disk what was compiled; the far device must not be closed meanwhile."""

    async def begin(self, turn: int, half: int, batch: Batch, num_tokens: int) -> AttentionPass:
        """Read what of a batch decides the attention, before the batch's sequences change.

        `turn` tells the steps in flight apart; its pass before this one is done. `num_tokens` is the number of rows
        with padding.

        Raises:
            DeviceError: the far device lacks what it needs for this batch.
        """

    async def drain(self) -> None:
        """Wait until the far device does nothing of passes that were abandoned."""
