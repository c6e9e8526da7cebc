"""One run under way: its instructions, packets and results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.errors import NpuTimeoutError
from unicorn_async.npu.completion import RunEnd
from unicorn_async.npu.geometry import BF16_BYTES, CORE_BUFFER_BYTES, F32_BYTES
from unicorn_async.npu.packets import read_results, write_parameters, write_queries
from unicorn_async.npu.schedule import PACKET_BYTES, Argument

if TYPE_CHECKING:
    import asyncio

    from numpy.typing import NDArray

    from unicorn_async.npu.buffer import Buffer
    from unicorn_async.npu.context import Context, Run
    from unicorn_async.npu.geometry import HeadLayout
    from unicorn_async.npu.packets import Bf16Bits
    from unicorn_async.npu.part import PreparedPart
    from unicorn_async.npu.shared import SharedPackets
    from unicorn_async.npu.work import AttentionHeads

_POISON = np.uint32(0x7FC5A5A5)  # a NaN that no arithmetic makes


class RunBuffers:
    """Buffers for a run of `num_items` items at most; nothing in them is written while it is under way.

    `ended` is the future of the last run, None before the first.
    """

    def __init__(
        self, context: Context, layout: HeadLayout, num_items: int, instruction_bytes: int, number: int
    ) -> None:
        self.number = number
        self.ended: asyncio.Future[RunEnd] | None = None
        self._generation = 0  # of the context in which the last run was
        self._context = context
        self._run: Run | None = None
        self._part: PreparedPart | None = None
        self._buffers: list[Buffer] = []
        self._used: tuple[Buffer, Buffer]  # packets and results of what was loaded
        device, groups = context.device, context.groups
        try:
            self._instructions = self._keep(
                device.allocate(
                    instruction_bytes,
                    group=context.instruction_group,
                    name=f"NPU frame {number}: instructions",
                    instructions=True,
                )
            )
            self.packets = self._keep(
                device.allocate(
                    num_items * PACKET_BYTES, group=groups[Argument.PACKETS], name=f"NPU frame {number}: packets"
                )
            )
            self.results = self._keep(
                device.allocate(
                    num_items * layout.result_bytes, group=groups[Argument.RESULTS], name=f"NPU frame {number}: results"
                )
            )
        except BaseException:
            self.close()
            raise

    @property
    def is_in_doubt(self) -> bool:
        """Whether nobody knows if the last run has ended: its buffers are the NPU's until the context is closed."""
        if self.ended is None or not self.ended.done() or self._run is None or self._run.is_closed:
            return False
        return self.ended.cancelled() or self.ended.exception() is not None

    def took_too_long(self, generation: int) -> bool:
        """Whether the last run was one of this context's, and was ended for its time, or given up."""
        if self._generation != generation or self.ended is None:
            return False
        if not self.ended.done() or self.ended.cancelled():
            return False
        error = self.ended.exception()
        return isinstance(error, NpuTimeoutError) or (error is None and self.ended.result() is RunEnd.TIMEOUT)

    def load(self, heads: AttentionHeads, part: PreparedPart, q: Bf16Bits) -> None:
        """Write what a run needs; what is left from a run of the same part stays."""
        if self._part is not part:
            self._load_instructions(part)
            write_parameters(self.packets.mapped, part)
            for number in range(len(part.items)):
                self.packets.to_device(number * PACKET_BYTES, 4 * part.parameters.shape[1])
            self._part = part
        self._used = self.packets, self.results
        write_queries(self.packets.mapped, heads, part, q)
        nbytes = part.strips * heads.layout.strip_bytes * BF16_BYTES // F32_BYTES
        for number in range(len(part.items)):
            self.packets.to_device(number * PACKET_BYTES + CORE_BUFFER_BYTES, nbytes)

    def load_shared(self, part: PreparedPart, shared: SharedPackets) -> None:
        """Write what a run on shared packets needs; another device has written the queries."""
        if self._part is not part:
            self._load_instructions(part)
            self._part = part
        self._used = shared.packets, shared.results
        shared.load(part)

    def unload(self, heads: AttentionHeads, part: PreparedPart, out: NDArray[np.float32]) -> None:
        """Copy the results of a run that has ended."""
        self.results.from_device(0, len(part.items) * part.result_bytes)
        read_results(self.results.mapped, heads, part, out)

    def start(self, cache: Buffer, timeout_s: float) -> asyncio.Future[RunEnd]:
        """Start what was loaded; its end is `ended`.

        Raises:
            NpuContextLostError: the driver gave up on the context before.
        """
        assert self._part is not None, f"NPU frame {self.number}: started before it was loaded"
        self.ended = None
        if self._run is None or self._run.is_closed:
            self._run = self._context.make_run(f"NPU attention {self.number}")
        self._run.start(self._instructions, self._part.stream.nbytes, (cache, *self._used))
        self._generation = self._context.generation
        watch = self._context.device.completion.watch
        self.ended = watch(self._run.handle, name=self._run.name, timeout_s=timeout_s)
        return self.ended

    def poison(self) -> None:
        """Fill the results with NaN, so that a run which does nothing is seen."""
        self.results.mapped.view(np.uint32)[:] = _POISON
        self.results.to_device(0, self.results.nbytes)

    def poison_loaded(self) -> None:
        """Fill the results of what was loaded with NaN, wherever they go."""
        offset, strips, used = self._loaded_results()
        strips[used] = _POISON
        self._used[1].to_device(offset, strips.nbytes)

    def has_results(self) -> bool:
        """Whether a run that has ended, and began with NaN, wrote all results of what was loaded."""
        offset, strips, used = self._loaded_results()
        self._used[1].from_device(offset, strips.nbytes)
        return not (strips[used] == _POISON).any()

    def _loaded_results(self) -> tuple[int, NDArray[np.uint32], NDArray[np.bool_]]:
        """Return where the results are in their buffer, their strips (items, strips, words), and which have rows."""
        part = self._part
        assert part is not None, f"NPU frame {self.number}: nothing was loaded"
        shape = (len(part.items), part.strips, -1)
        offset = part.first * part.result_bytes
        results = self._used[1].mapped[offset : offset + len(part.items) * part.result_bytes]
        return (
            offset,
            results.view(np.uint32).reshape(shape),
            np.asarray(part.used.reshape(shape).any(axis=2), np.bool_),
        )

    def close(self) -> None:
        """Give the memory back; a second call does nothing. No run may be under way."""
        if self._run is not None:
            self._run.close()
            self._run = None
        for buffer in self._buffers:
            buffer.close()

    def _load_instructions(self, part: PreparedPart) -> None:
        self._part = None
        stream = part.stream.view(np.uint8)
        self._instructions.mapped[: stream.nbytes] = stream
        self._instructions.to_device(0, stream.nbytes)

    def _keep(self, buffer: Buffer) -> Buffer:
        self._buffers.append(buffer)
        return buffer
