"""Attention on the NPU: what a step's layer needs goes in, an awaitable comes out.

Once a step, `prepare` cuts its sequences into items (`work`), spreads them over the cores and writes the instructions
that stream packets and cache to the cores and results back (`schedule`). Then `submit`, layer by layer, copies queries
into a run's packets (`packets`), starts it, and copies the results to `out` when it ends. What is large is
copied in a thread. `submit_shared` copies neither: another device has its hands in the same memory (`shared`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unicorn_async.background import wait_to_end
from unicorn_async.errors import ConfigError, NpuError, NpuTimeoutError
from unicorn_async.npu.cache import NpuCache
from unicorn_async.npu.flight import Call, Caller, CopiedCall, Flight, SharedCall
from unicorn_async.npu.pace import FEW_TASKS, RunPace
from unicorn_async.npu.part_runner import PartRunner
from unicorn_async.npu.precision import PRECISIONS
from unicorn_async.npu.recovery import Recovery
from unicorn_async.npu.run_buffers import RunBuffers
from unicorn_async.npu.schedule import PACKET_BYTES, Argument
from unicorn_async.npu.step import PreparedStep, prepare_step
from unicorn_async.npu.work import SequenceWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.npu.buffer import Buffer
    from unicorn_async.npu.context import Context
    from unicorn_async.npu.geometry import HeadLayout
    from unicorn_async.npu.packets import Bf16Bits
    from unicorn_async.npu.part import PreparedPart
    from unicorn_async.npu.precision import Precision
    from unicorn_async.npu.recovery import Failure
    from unicorn_async.npu.shared import SharedPackets
    from unicorn_async.npu.work import AttentionHeads

__all__ = ["AttentionCounts", "AttentionService", "NpuOptions", "PreparedStep", "SequenceWork"]


@dataclass(frozen=True, slots=True)
class NpuOptions:
    """How runs are made: `num_runs` of them may be under way, of `items_per_run` items and `instruction_bytes`.

    A run has `tasks_per_run` of the controller at most, or a single item.
    Their end is waited for so long; None = by the driver's own limit.
    """

    num_runs: int = 2
    items_per_run: int = 256
    instruction_bytes: int = 1 << 20
    tasks_per_run: int = FEW_TASKS
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        has_time = self.timeout_s is None or self.timeout_s > 0
        counts = (self.num_runs, self.items_per_run, self.tasks_per_run)
        if min(counts) < 1 or self.instruction_bytes < 4096 or not has_time:
            raise ConfigError(f"NPU options: expected positive sizes, and 4096 bytes of instructions, got {self}")

    def run_bytes(self, layout: HeadLayout) -> int:
        """Return the memory that the runs' buffers take."""
        return self.num_runs * (self.instruction_bytes + self.items_per_run * (PACKET_BYTES + layout.result_bytes))


@dataclass(frozen=True, slots=True)
class AttentionCounts:
    """What has been done: runs that completed, and how often a context had to be made anew."""

    runs: int
    recoveries: int


class AttentionService:
    """softmax(q · Kᵀ) · V over paged caches, for one shape of heads; everything but `submit` is the owner's to order.

    The context is borrowed. `submit` may be called again before a call has ended: calls wait for free buffers in turn,
    and a caller that is cancelled leaves its run to end by itself; its buffers are free after that.
    """

    def __init__(
        self, context: Context, heads: AttentionHeads, *, soft_cap: float = 0.0, options: NpuOptions | None = None
    ) -> None:
        """Allocate the runs' buffers; `soft_cap` (0 = none) makes scores cap * tanh(score / cap).

        Raises:
            ConfigError: the context was built for another head_dim or chip.
            OutOfMemoryError: they do not fit.
        """
        build, layout = context.build, heads.layout
        if build.head_dim != layout.head_dim or build.chip is not layout.chip:
            raise ConfigError(
                f"NPU attention: expected a build for {layout.chip.name} and head_dim {layout.head_dim},"
                f" got one for {build.chip.name} and {build.head_dim}"
            )
        if not 0.0 <= soft_cap < 8192.0:
            raise ConfigError(f"NPU attention: soft_cap: expected 0 to 8192, got {soft_cap}")
        self.heads = heads
        self.pace = RunPace(context.device.run_limit_s)
        self._options = options or NpuOptions()
        self._context = context
        self.soft_cap = soft_cap
        self._runs: list[RunBuffers] = []
        self._free: asyncio.Queue[RunBuffers] = asyncio.Queue()
        self._recovery = Recovery(context, self._runs, self._options.timeout_s or self.pace.wait_s)
        self._runner = PartRunner(context.build, heads, self.pace, self._recovery)
        self._broken: NpuError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        try:
            for number in range(self._options.num_runs):
                buffers = RunBuffers(
                    context, layout, self._options.items_per_run, self._options.instruction_bytes, number
                )
                self._runs.append(buffers)
                self._free.put_nowait(buffers)
        except BaseException:
            self._release_frames()
            raise

    @property
    def precision(self) -> Precision:
        """How far off the kernels' answers may be."""
        return PRECISIONS[self._context.build.products]

    @property
    def counts(self) -> AttentionCounts:
        """What has been done until now."""
        return AttentionCounts(self._runner.num_runs, self._recovery.count)

    def allocate_cache(self, num_blocks: int, *, name: str = "NPU cache") -> NpuCache:
        """Allocate a layer's cache.

        Raises:
            OutOfMemoryError: it can't be had.
        """
        nbytes = self.cache_bytes(num_blocks, name=name)
        group = self._context.groups[Argument.CACHE]
        return NpuCache(self._context.device.allocate(nbytes, group=group, name=name), self.heads, num_blocks)

    def cache_bytes(self, num_blocks: int, *, name: str) -> int:
        """Return the size of a layer's cache.

        Raises:
            ConfigError: there can be no such cache.
        """
        if num_blocks < 1:
            raise ConfigError(f"{name}: expected at least one block, got {num_blocks}")
        nbytes = self.heads.cache_bytes(num_blocks)
        if nbytes >= 1 << 32:
            raise ConfigError(f"{name}: {nbytes:,} bytes; an instruction reaches 4 GiB of a layer's cache at most")
        return nbytes

    def wrap(self, pages: memoryview, *, name: str) -> Buffer:
        """Make pages of the host a buffer, as `Device.wrap` does."""
        return self._context.device.wrap(pages, name=name)

    def prepare(
        self,
        sequences: Sequence[SequenceWork],
        *,
        num_tokens: int,
        num_blocks: int,
        window: int,
        is_shared: bool = False,
    ) -> PreparedStep:
        """Prepare a step for all layers that share a window (in tokens, 0 = none), blocks and their number.

        A query sees the keys up to its own position, with a window only the last `window` of them. `num_tokens` are
        q's rows, `num_blocks` the caches' blocks. A step is for `submit`, or, if it `is_shared`, for `submit_shared`.

        Raises:
            ConfigError: rows, lengths or blocks that don't fit.
        """
        return prepare_step(
            self._context.build,
            self.heads,
            sequences,
            num_tokens=num_tokens,
            num_blocks=num_blocks,
            window=window,
            soft_cap=self.soft_cap,
            items_per_run=self._options.items_per_run,
            instruction_bytes=self._options.instruction_bytes,
            tasks_per_run=self._options.tasks_per_run,
            run_s=self.pace.run_s,
            is_shared=is_shared,
        )

    async def submit(self, step: PreparedStep, *, q: Bf16Bits, cache: NpuCache, out: NDArray[np.float32]) -> None:
        """Compute one layer's attention, and return when `out` is written.

        `q` is (tokens, num_heads, head_dim) bf16, rotated and scaled; it is read once buffers are free, so it stays as
        it is until this returns. `out` is (tokens, num_heads, head_dim) f32; rows without a query stay as they are. A
        caller that is cancelled gets nothing more into `out`; what of the cache a run under way reads may be
        rewritten only after `drain`.

        Raises:
            ConfigError: shapes that don't fit the step.
            NpuTimeoutError: runs don't end, in new contexts either, and every later call gets the same error.
            NpuContextLostError: a run failed, and failed again in a new context.
            NpuError: the attention was closed.
        """
        self._check(step, cache, is_shared=False)
        self._check_arrays(step, q, out)
        await self._submit(step, CopiedCall(self.heads, q, out), cache)

    async def submit_shared(self, step: PreparedStep, *, packets: SharedPackets, cache: NpuCache) -> None:
        """Compute one layer's attention, and return when the results are in `packets` for other devices to see.

        Another device has written the queries there, and is done. A caller that is cancelled leaves its run, as in
        `submit`: only after `drain` may anything of `packets` be closed, or a step begin that uses it.

        Raises:
            ConfigError: another kind of step, or more items than `packets` has.
            NpuTimeoutError, NpuContextLostError, NpuError: as `submit`.
        """
        self._check(step, cache, is_shared=True)
        if step.num_items > packets.num_items:
            raise ConfigError(f"NPU attention: {step.num_items} items in packets for {packets.num_items}")
        await self._submit(step, SharedCall(packets), cache)

    async def _submit(self, step: PreparedStep, call: Call, cache: NpuCache) -> None:
        flights: list[Flight] = []
        try:
            for part in step.parts:
                flights.append(await self._launch(part, call, cache))
                if len(flights) > self._options.num_runs:
                    await asyncio.shield(flights[0].task)
                    flights.pop(0)
            while flights:
                await asyncio.shield(flights[0].task)
                flights.pop(0)
        finally:
            for flight in flights:
                flight.caller.call = None
            copying = [flight.task for flight in flights if flight.caller.is_copying]
            flights.clear()  # a failed task's traceback holds this list, and with it the run's buffers
            try:
                await wait_to_end(*copying)
            finally:
                copying.clear()

    def poison_results(self) -> None:
        """Fill the buffers' results with NaN, so that a run which does nothing is seen; no run may be under way."""
        for buffers in self._runs:
            buffers.poison()

    async def close(self) -> None:
        """Wait for the runs under way, then free buffers; a second call does nothing. Waiting calls get NpuError."""
        self._closed = True
        try:
            await self.drain()
        finally:
            self._release_frames()

    async def drain(self) -> None:
        """Wait until no run is under way, those of cancelled callers included; a cancellation is raised after it.

        Where a run has no known end this closes the context: then the NPU reads and writes no buffer any more, caches
        included.
        """
        cancelled: asyncio.CancelledError | None = None
        while pending := self._under_way():
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError as exc:
                cancelled = exc
        if self._broken is not None or any(buffers.is_in_doubt for buffers in self._runs):
            self._context.close()
        if cancelled is not None:
            raise cancelled

    def _under_way(self) -> set[asyncio.Future[Any]]:
        """Return the flights, and runs that go on without one because their loop's end cancelled it."""
        runs = (buffers.ended for buffers in self._runs if buffers.ended is not None and not buffers.ended.done())
        return {*self._tasks, *runs}

    def _release_frames(self) -> None:
        for buffers in self._runs:
            buffers.close()
        self._runs.clear()

    def _check_arrays(self, step: PreparedStep, q: Bf16Bits, out: NDArray[np.float32]) -> None:
        shape = (step.num_tokens, self.heads.num_heads, self.heads.layout.head_dim)
        if q.shape != shape or q.dtype != np.uint16:
            raise ConfigError(f"NPU attention: q: expected bf16 of shape {shape}, got {q.dtype} of {q.shape}")
        if out.shape != shape or out.dtype != np.float32:
            raise ConfigError(f"NPU attention: out: expected f32 of shape {shape}, got {out.dtype} of {out.shape}")

    def _check(self, step: PreparedStep, cache: NpuCache, *, is_shared: bool) -> None:
        if step.is_shared != is_shared:
            raise ConfigError(f"NPU attention: a step of the other kind: is_shared is {step.is_shared}")
        if step.heads != self.heads or cache.heads != self.heads or cache.num_blocks != step.num_blocks:
            raise ConfigError(
                f"NPU attention: expected {self.heads} and a cache of {step.num_blocks} blocks, got a step for"
                f" {step.heads} and a cache of {cache.num_blocks} blocks for {cache.heads}"
            )

    async def _launch(self, part: PreparedPart, call: Call, cache: NpuCache) -> Flight:
        """Wait for free buffers, and have the NPU compute the part."""
        buffers = await self._free.get()
        try:
            if self._broken is not None:
                raise NpuTimeoutError(str(self._broken))
            if self._closed:
                raise NpuError("NPU attention: closed before the call could start")
        except BaseException:
            self._free.put_nowait(buffers)
            raise
        caller = Caller(call)
        work = self._fly(buffers, part, cache, caller)
        task = asyncio.create_task(work, name=f"npu-attention-{buffers.number}")
        self._tasks.add(task)
        task.add_done_callback(self._landed)
        return Flight(task, caller)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # an abandoned flight's error has nobody to go to

    async def _fly(self, buffers: RunBuffers, part: PreparedPart, cache: NpuCache, caller: Caller) -> None:
        """Do a part, and free the buffers."""
        failure: Failure | None = None
        try:
            failure = await self._runner.complete(buffers, part, cache.buffer, caller)
            if failure is not None:
                await self._recovery.settle(buffers)
                raise failure.final()
        except NpuTimeoutError as exc:
            self._broken = exc
            raise
        finally:
            failure = None  # its traceback holds this frame, which would hold the run's buffers
            if buffers.ended is None or buffers.ended.done():
                self._free.put_nowait(buffers)
            else:  # the loop ends, and cancels this task; the run goes on
                buffers.ended.add_done_callback(lambda _: self._free.put_nowait(buffers))
