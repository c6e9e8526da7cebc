"""Runs products on a device, with random numbers, and times them by the device's own clock, at steady clock rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.config import Activation
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.linear import NO_EPILOGUE, Epilogue, dispatch_plan, kernel_request, prepare_input
from unicorn_async.ops.linear_scratch import LinearScratch
from unicorn_async.ops.rows import BlockRows
from unicorn_async.tensor import DType, QuantTensor, Tensor
from unicorn_async.tune.random_memory import random_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.gpu.queue import CommandBuffer
    from unicorn_async.ops.linear_plans.plan import LinearPlan
    from unicorn_async.ops.linear_plans.product import Product
    from unicorn_async.ops.rows import Rows

_GPU_POOL_BYTES, _SOFTWARE_POOL_BYTES = 512 << 20, 64 << 20  # of copies of the weights, so that no cache holds them
_GPU_SAMPLE_NS, _SOFTWARE_SAMPLE_NS = 200_000, 2_000_000  # that dispatches between two timestamps should take
_SUBMISSION_NS = 1_000_000_000  # drivers reset a GPU that is busy for many seconds
_MAX_REPEATS = 32
_MAX_PLANS = 2  # of a call
_GPU_BUSY_NS = 2_000_000  # longer than the host takes to record a call
_MAX_BUSY_DISPATCHES = 512
_MIN_WARM, _MAX_WARM = 5, 50  # times the busy time, until clocks are taken to be steady
_STEADY_RUNS, _STEADY = 3, 0.03  # that agree so closely
_GATE = Epilogue(gate=Activation.SILU)  # either costs the same
_SHORT = 0.7  # of the busy time: recorded anew, so that it covers what the host does meanwhile


def product_kernel(product: Product, plan: LinearPlan) -> KernelRequest:
    """Name the pipeline that a product is timed with by a plan."""
    return kernel_request(plan, _epilogue(product), blocked=product.blocked)


def _epilogue(product: Product) -> Epilogue:
    return _GATE if product.gated else NO_EPILOGUE


class ProductBench:
    """Memory for some products on a device, and what runs them; it blocks. Close it before the device.

    A GPU that waits for work between two short runs lowers its clocks, by half or more, at a time of its own choosing.
    So work of `busy_ns` goes ahead of everything that is timed, once `keep_busy` has said which. By default that is
    2 ms, and nothing on software devices.

    Raises:
        OutOfMemoryError: there is no room for the largest of the products.
    """

    def __init__(self, device: Device, products: Iterable[Product], *, busy_ns: int | None = None) -> None:
        products = tuple(products)
        largest = max(product.weight_bytes for product in products)
        software = device.info.is_software
        self._device = device
        self._sample_ns = _SOFTWARE_SAMPLE_NS if software else _GPU_SAMPLE_NS
        self._busy_ns = (0 if software else _GPU_BUSY_NS) if busy_ns is None else busy_ns
        self._busy: CommandBuffer | None = None
        self._copy = 0  # of the weights, that the next dispatch reads
        self._buffers: list[Buffer] = []
        self._pool = CommandPool(device, device.compute)
        self._stamps = TimestampPool(device, 2 * _MAX_PLANS)
        self._busy_stamps = TimestampPool(device, 2)
        tokens, columns = max(p.tokens for p in products), max(p.k for p in products)
        try:
            pool_bytes = max(largest, _SOFTWARE_POOL_BYTES if software else _GPU_POOL_BYTES)
            self._weights = self._keep(random_memory(self._pool, pool_bytes, name="weights"))
            self._input = self._keep(
                random_memory(self._pool, max(p.tokens * p.k for p in products) * 4, name="input", dtype=np.float32)
            )
            self._output = self._allocate(max(p.tokens * p.n for p in products) * 4, "output")
            scratch = self._allocate(LinearScratch.size(tokens, columns), "scratch")
            self._scratch = LinearScratch.at(scratch.address, tokens, columns)
        except BaseException:
            self.close()
            raise

    def keep_busy(self, product: Product, plan: LinearPlan, ns: float) -> None:
        """Run a plan, which takes `ns` a dispatch, until its time is steady, and from now on ahead of what is timed."""
        if not self._busy_ns:
            return
        count = self._record_busy(product, plan, ns)
        steady_ns = self._warm_up()
        if steady_ns < _SHORT * self._busy_ns:  # `ns` was measured at lower clocks
            self._record_busy(product, plan, steady_ns / count)

    def first_ns(self, product: Product, plan: LinearPlan) -> float:
        """Nanoseconds of a dispatch, the least of three: the driver leaves work to the first, and others interrupt."""
        (alone,) = self._run(product, (plan,), (1,))
        return min(alone, *self.times_ns(product, ((plan, alone), (plan, alone))))

    def times_ns(self, product: Product, plans: Sequence[tuple[LinearPlan, float]]) -> tuple[float, ...]:
        """Nanoseconds of a dispatch by each of one or two plans, one after the other; with each what it took before."""
        repeats = [max(1, min(_MAX_REPEATS, round(self._sample_ns / ns))) for _, ns in plans]
        if sum(ns * count for (_, ns), count in zip(plans, repeats, strict=True)) <= _SUBMISSION_NS:
            return self._run(product, [plan for plan, _ in plans], repeats)
        return tuple(self._run(product, (plan,), (1,))[0] for plan, _ in plans)

    def cost_ns(self, ns: float, *, calls: int, plans: int) -> float:
        """How long so many calls of `times_ns` take, of so many plans whose dispatches take `ns`."""
        busy = max(self._busy_ns, ns) if self._busy_ns else 0.0
        return calls * (busy + plans * max(ns, min(self._sample_ns, _MAX_REPEATS * ns)))

    def warm_ns(self) -> float:
        """How long `keep_busy` takes at least."""
        return _MIN_WARM * self._busy_ns

    def close(self) -> None:
        """Free everything; nothing is pending between two calls."""
        for buffer in self._buffers:
            buffer.close()
        self._stamps.close()
        self._busy_stamps.close()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _record_busy(self, product: Product, plan: LinearPlan, ns: float) -> int:
        """Record as many dispatches as take the busy time; returns their number."""
        count = max(1, min(_MAX_BUSY_DISPATCHES, round(self._busy_ns / ns)))
        recorder = self._pool.recorder(self._busy)
        rows = self._prepare(recorder, product, plan)
        recorder.timestamp(self._busy_stamps, 0)
        for _ in range(count):
            self._dispatch(recorder, product, plan, rows)
        recorder.timestamp(self._busy_stamps, 1)
        self._busy = recorder.end()
        return count

    def _warm_up(self) -> int:
        """Run what was recorded until its time is steady, or for long enough; returns its nanoseconds."""
        assert self._busy is not None
        times: list[int] = []
        while sum(times) < _MAX_WARM * self._busy_ns:
            self._device.compute.timeline.wait(self._device.compute.submit([self._busy]))
            start, stop = self._busy_stamps.read(0, 2)
            times.append(max(stop - start, 1))
            last = times[-_STEADY_RUNS:]
            is_steady = len(last) == _STEADY_RUNS and max(last) <= (1.0 + _STEADY) * min(last)
            if is_steady and sum(times) >= _MIN_WARM * self._busy_ns:
                break
        return times[-1]

    def _run(self, product: Product, plans: Sequence[LinearPlan], repeats: Sequence[int]) -> tuple[float, ...]:
        """Nanoseconds of a dispatch by each of the plans, one after the other, with the barrier after it."""
        queue = self._device.compute
        pending = 0 if self._busy is None else queue.submit([self._busy])  # while the host records
        try:
            recorder = self._pool.recorder()
            rows = self._prepare(recorder, product, plans[0])
            for index, (plan, count) in enumerate(zip(plans, repeats, strict=True)):
                recorder.timestamp(self._stamps, 2 * index)
                for _ in range(count):
                    self._dispatch(recorder, product, plan, rows)
                recorder.timestamp(self._stamps, 2 * index + 1)
            commands = recorder.end()
            pending = queue.submit([commands])
        finally:
            queue.timeline.wait(pending)
        self._pool.free(commands)
        stamps = self._stamps.read(0, 2 * len(plans))
        return tuple(
            max(stop - start, 1) / count for count, start, stop in zip(repeats, stamps[::2], stamps[1::2], strict=True)
        )

    def _prepare(self, recorder: CommandRecorder, product: Product, plan: LinearPlan) -> Rows:
        """Record what brings the activations into the form that a plan reads."""
        floats = Tensor(self._input.address, (product.tokens, product.k), DType.F32)
        rows = self._scratch.rows(floats, plan.form)
        if not isinstance(rows, Tensor):
            prepare_input(recorder, self._device.kernels, self._device.info, x=floats, out=rows)
        recorder.barrier()
        return rows

    def _dispatch(self, recorder: CommandRecorder, product: Product, plan: LinearPlan, rows: Rows) -> None:
        """Record one product, with the next copy of the weights, and a barrier."""
        nbytes = product.weight_bytes
        self._copy = (self._copy + 1) % (self._weights.nbytes // nbytes)
        place, shape, element = self._weights.address + self._copy * nbytes, (product.n, product.k), product.element
        outputs = product.tokens, product.num_outputs
        dispatch_plan(
            recorder,
            self._device.kernels,
            plan,
            x=rows,
            weight=Tensor(place, shape, element) if isinstance(element, DType) else QuantTensor(place, shape, element),
            out=BlockRows.at(self._output.address, *outputs)
            if product.blocked
            else Tensor(self._output.address, outputs, DType.F32),
            num_tokens=product.tokens,
            scratch=self._scratch,
            epilogue=_epilogue(product),
        )
        recorder.barrier()

    def _allocate(self, nbytes: int, name: str) -> Buffer:
        return self._keep(self._device.memory.allocate(nbytes, MemoryKind.DEVICE, name=name))

    def _keep(self, buffer: Buffer) -> Buffer:
        self._buffers.append(buffer)
        return buffer
