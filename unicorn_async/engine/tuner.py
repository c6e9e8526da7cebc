"""Measures the candidates for products on a device, with random numbers, by the device's own clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from operator import mul
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.engine.random_memory import random_memory
from unicorn_async.engine.tuning_products import weight_bytes
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.linear import dispatch_plan
from unicorn_async.ops.linear_candidates import candidates
from unicorn_async.ops.linear_input import InputBlocks, InputForm, LinearScratch
from unicorn_async.ops.linear_quant import dispatch_quant_plan, prepare_input
from unicorn_async.tensor import DType, QuantTensor, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.ops.linear_candidates import Product
    from unicorn_async.ops.linear_input import LinearInput
    from unicorn_async.ops.linear_plan import LinearPlan, Pipeline

_GPU_POOL_BYTES, _SOFTWARE_POOL_BYTES = 512 << 20, 64 << 20  # of copies of the weights, so that no cache holds them
_GPU_SAMPLE_NS, _SOFTWARE_SAMPLE_NS = 200_000, 2_000_000  # that dispatches between two timestamps should take
_SUBMISSION_NS = 1_000_000_000  # drivers reset a GPU that is busy for many seconds
_MAX_REPEATS = 32
_MAX_CANDIDATES = 64
_FIRST_RUNS = 3
_HOPELESS = 1.3  # times the fastest: slower ones are not measured again
_ROUNDS = 3  # that find the best of the others
_DECIDING_ROUNDS = 9  # of the rules' plan and the best one in turns
_MIN_WINS = 8  # of these rounds; of two that are alike one wins so many once in fifty times
_MIN_GAIN = 0.03


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of a product: `best` is the rules' plan, `rule`, unless another is faster by more than noise.

    Times are medians in microseconds of a dispatch with the barrier after it, of rounds in which both took turns.
    """

    product: Product
    rule: LinearPlan
    best: LinearPlan
    rule_us: float
    best_us: float
    num_candidates: int

    @property
    def gain(self) -> float:
        """How much more of the product the best plan does in the same time, as a share."""
        return self.rule_us / self.best_us - 1.0


class Tuner:
    """Memory for some products on a device, and what measures them; it blocks. Close it before the device.

    Raises:
        OutOfMemoryError: there is no room for the largest of the products.
    """

    def __init__(self, device: Device, products: Iterable[Product]) -> None:
        products = tuple(products)
        largest = max(weight_bytes(product) for product in products)
        software = device.info.is_software
        self._device = device
        self._sample_ns = _SOFTWARE_SAMPLE_NS if software else _GPU_SAMPLE_NS
        self._copy = 0  # of the weights, that the next dispatch reads
        self._buffers: list[Buffer] = []
        self._pool = CommandPool(device, device.compute)
        self._stamps = TimestampPool(device, 2 * _MAX_CANDIDATES)
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

    def measure(self, product: Product, *, most_s: float) -> Measurement | None:
        """Measure all candidates of a product; None where that would clearly take longer than `most_s`.

        Raises:
            UnsupportedModelError: no kernel takes the product.
            DeviceLostError: the device was lost meanwhile.
        """
        begun = time.monotonic()
        plans = candidates(self._device.info, product)[:_MAX_CANDIDATES]
        rule = plans[0]
        num_runs = (_FIRST_RUNS + _ROUNDS) * len(plans) + 2 * _DECIDING_ROUNDS
        needed_s = num_runs * self._first(product, rule) * 1e-9
        if needed_s > most_s - (time.monotonic() - begun):
            return None
        self._device.kernels.prepare(KernelRequest(p.entry, dict(p.constants), p.subgroup_size) for p in plans)
        first = {plan.pipeline: self._first(product, plan) for plan in plans}
        hopeful = [plan for plan in plans if plan is rule or first[plan.pipeline] < _HOPELESS * min(first.values())]
        rounds = [self._round(product, hopeful, first) for _ in range(_ROUNDS)]
        times = [median(times) for times in zip(*rounds, strict=True)]
        best = hopeful[times.index(min(times))]
        if best is rule or times[0] < (1.0 + _MIN_GAIN) * min(times):
            return Measurement(product, rule, rule, times[0] / 1e3, times[0] / 1e3, len(plans))
        return self._decide(product, rule, best, first, len(plans))

    def close(self) -> None:
        """Free everything; nothing is pending between two calls."""
        for buffer in self._buffers:
            buffer.close()
        self._stamps.close()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _decide(
        self,
        product: Product,
        rule: LinearPlan,
        best: LinearPlan,
        first: Mapping[Pipeline, float],
        num_candidates: int,
    ) -> Measurement:
        """Measure two plans anew, in turns: the best of many that are alike looks faster than it is."""
        pairs = []
        for number in range(_DECIDING_ROUNDS):
            order = (rule, best) if number % 2 == 0 else (best, rule)
            found = self._round(product, order, first)
            pairs.append(found if number % 2 == 0 else found[::-1])
        rule_us, best_us = (median(times) / 1e3 for times in zip(*pairs, strict=True))
        wins = sum(theirs < ours for ours, theirs in pairs)
        if wins < _MIN_WINS or rule_us < (1.0 + _MIN_GAIN) * best_us:
            best, best_us = rule, rule_us
        return Measurement(product, rule, best, rule_us, best_us, num_candidates)

    def _first(self, product: Product, plan: LinearPlan) -> float:
        """Nanoseconds of a dispatch, the least of a few: the driver leaves work to the first, and others interrupt."""
        return min(self._submission(product, (plan,), (1,))[0] for _ in range(_FIRST_RUNS))

    def _round(
        self, product: Product, plans: Sequence[LinearPlan], first: Mapping[Pipeline, float]
    ) -> tuple[float, ...]:
        """Nanoseconds of a dispatch by each of the plans, which took those of `first` when they were first measured."""
        times = [first[plan.pipeline] for plan in plans]
        repeats = [max(1, min(_MAX_REPEATS, round(self._sample_ns / ns))) for ns in times]
        if sum(map(mul, times, repeats)) <= _SUBMISSION_NS:
            return self._submission(product, plans, repeats)
        return tuple(self._submission(product, (plan,), (1,))[0] for plan in plans)

    def _submission(self, product: Product, plans: Sequence[LinearPlan], repeats: Sequence[int]) -> tuple[float, ...]:
        """Nanoseconds of a dispatch by each of the plans, one after the other in one submission."""
        recorder = self._pool.recorder()
        rows = self._rows(product, plans[0].form)
        if not isinstance(rows, Tensor):
            kernels, info = self._device.kernels, self._device.info
            prepare_input(recorder, kernels, info, x=self._floats(product), out=rows)
        recorder.barrier()
        for index, (plan, count) in enumerate(zip(plans, repeats, strict=True)):
            recorder.timestamp(self._stamps, 2 * index)
            for _ in range(count):
                self._dispatch(recorder, product, plan, rows)
                recorder.barrier()
            recorder.timestamp(self._stamps, 2 * index + 1)
        commands = recorder.end()
        self._device.compute.timeline.wait(self._device.compute.submit([commands]))
        self._pool.free(commands)
        stamps = self._stamps.read(0, 2 * len(plans))
        return tuple(
            max(stop - start, 1) / count for count, start, stop in zip(repeats, stamps[::2], stamps[1::2], strict=True)
        )

    def _dispatch(self, recorder: CommandRecorder, product: Product, plan: LinearPlan, rows: LinearInput) -> None:
        element, shape, out = product.element, (product.n, product.k), self._output.address
        nbytes = weight_bytes(product)
        self._copy = (self._copy + 1) % (self._weights.nbytes // nbytes)
        address, kernels = self._weights.address + self._copy * nbytes, self._device.kernels
        if isinstance(element, DType):
            assert not isinstance(rows, InputBlocks)
            weight = Tensor(address, shape, element)
            dispatch_plan(
                recorder,
                kernels,
                plan,
                x=rows,
                weight=weight,
                out_address=out,
                num_tokens=product.tokens,
                scratch=self._scratch,
            )
            return
        assert not isinstance(rows, Tensor)
        width = product.n // 2 if product.gated else product.n
        dispatch_quant_plan(
            recorder,
            kernels,
            plan,
            x=rows,
            weight=QuantTensor(address, shape, element),
            out=InputBlocks.at(out, product.tokens, width) if product.blocked else out,
            num_tokens=product.tokens,
            scratch=self._scratch,
            stride=width,
        )

    def _floats(self, product: Product) -> Tensor:
        return Tensor(self._input.address, (product.tokens, product.k), DType.F32)

    def _rows(self, product: Product, form: InputForm) -> LinearInput:
        if form is InputForm.FLOATS:
            return self._floats(product)
        if form is InputForm.BLOCKS:
            return self._scratch.blocks(product.tokens, product.k)
        return self._scratch.half_rows(product.tokens, product.k, form)

    def _allocate(self, nbytes: int, name: str) -> Buffer:
        return self._keep(self._device.memory.allocate(nbytes, MemoryKind.DEVICE, name=name))

    def _keep(self, buffer: Buffer) -> Buffer:
        self._buffers.append(buffer)
        return buffer
