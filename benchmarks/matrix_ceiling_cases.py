"""The kernels of matrix_ceilings.py: how each is recorded, what it multiplies, and its reference in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from matrix2.extension import EXTENSION, FEATURE, flexible_shapes
from matrix2.rate import SHADERS, Matrix2Tile, matrix2_rate

from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.kernel import KernelLibrary
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.linear import dispatch_plan, kernel_request, prepare_input
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.ops.linear_plans.rules import plan_linear
from unicorn_async.ops.linear_scratch import LinearScratch
from unicorn_async.ops.rates import matrix_rate, matrix_rate_request
from unicorn_async.ops.subgroups import matrix_subgroup_size
from unicorn_async.tensor import DType, QuantFormat, QuantTensor, Tensor, element_of
from unicorn_async.tune.random_memory import random_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.gpu.memory import Buffer

    Shape = tuple[int, int, int]
    Doubles = NDArray[np.float64]

POOL_BYTES = 1 << 30  # of weights, at least: dispatches of one shape read one copy after the other
SKIP = 5 << 20  # bytes of a, so that its rows are none of b's
WORKGROUPS, ROUNDS, CHECK_ROUNDS = 4096, 1024, 8  # of matrix_rate
SIDE, STRIDE = 128, 40  # rows and halves of a row of its factors
SQUARE, SQUARE_FLOPS = (4096, 16384, 256), 4e12  # of matrix2_rate with factors that are read once
SAMPLES = 16  # rows and columns, beside the first and the last ones
ALLOWED = {"f32": 2e-3, "f16": 0.1}  # errors, by the type of the sums
SIZES = {"f32": 4, "f16": 2}
TILES = ((128, 256, 256), (256, 128, 256), (128, 128, 256), (128, 128, 128), (256, 256, 256))  # m, n, invocations
MAX_SUM_BYTES = 512  # of a lane: what has room in its registers
MEMORY_STEPS = ((32, 4), (64, 1), (64, 4))  # columns at a time, and steps that are written out
REGISTER_STEPS = ((16, 4), (32, 4), (64, 4))


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One kernel: `record` takes a number that chooses among copies, `error` runs it and compares."""

    group: str
    kernel: str
    shape: str
    flops: int
    kernels: KernelLibrary
    request: KernelRequest
    allowed: float
    prepare: Callable[[CommandRecorder], None]
    record: Callable[[CommandRecorder, int], None]
    error: Callable[[], float]


def lacking(device: Device) -> list[str]:
    """Say for each extension what the device has of it, or why nothing is measured."""
    size = matrix_subgroup_size(device.info)
    khr = f"subgroups of {size}" if size else "no 16×16×16 products of halves summed in single: not measured"
    found = flexible_shapes(device.api, device.physical)
    shapes = [] if isinstance(found, str) else [s for s in found if s.scope == "workgroup" and s.a == s.b == "f16"]
    if isinstance(found, str):
        second = f"{found}: not measured"
    elif not shapes:
        second = "no products of halves of a workgroup's scope: not measured"
    else:
        second = "; ".join(f"{s.m}×{s.n}×{s.k} {s.result} with {s.invocations} invocations" for s in shapes)
    return [f"VK_KHR_cooperative_matrix: {khr}", f"{EXTENSION}: {second}"]


class Cases:
    """All kernels that the device has, for products of these shapes (m, n, k), on memory of random numbers."""

    def __init__(self, device: Device, shapes: list[Shape]) -> None:
        self._device, self._shapes = device, shapes
        found = flexible_shapes(device.api, device.physical)
        self._flexible = () if isinstance(found, str) else found
        if self._flexible:
            device.info = replace(device.info, features=device.info.features | {FEATURE})
        self._matrix2_kernels = KernelLibrary(device, SHADERS, cache_dir=None)
        self.pool = CommandPool(device, device.compute)
        most = max(n * k * 2 for _, n, k in shapes)
        tokens, columns = max(m for m, _, _ in shapes), max(k for _, _, k in shapes)
        inputs = max(m * k for m, _, k in (*shapes, SQUARE)) * 4 + SKIP
        outputs = max(m * n for m, n, _ in (*shapes, SQUARE)) * 4
        allocate = device.memory.allocate
        self._weights = random_memory(self.pool, max(POOL_BYTES, most), name="weights")
        self._halves = random_memory(self.pool, inputs, name="halves")
        self._floats = random_memory(self.pool, inputs, name="floats", dtype=np.float32)
        self._y = allocate(max(outputs, WORKGROUPS * SIDE * 4 * 4), MemoryKind.DEVICE, name="y")
        self._scratch = allocate(LinearScratch.size(tokens, columns), MemoryKind.DEVICE, name="scratch")
        self._room = LinearScratch.at(self._scratch.address, tokens, columns)
        self._wanted: dict[tuple[Shape, int], Doubles] = {}
        recorder = self.pool.recorder()
        recorder.fill(self._scratch, 0, self._scratch.nbytes, 0)
        device.compute.timeline.wait(device.compute.submit([recorder.end()]))

    def close(self) -> None:
        """Free the memory."""
        things = self._scratch, self._y, self._floats, self._halves, self._weights, self.pool, self._matrix2_kernels
        for thing in things:
            thing.close()

    def all(self) -> Iterator[Case]:
        """Make the cases, the ceilings first."""
        info = self._device.info
        if matrix_subgroup_size(info) is not None:
            yield self._khr("KHR, registers", from_shared=False)
            yield self._khr("KHR, shared memory", from_shared=True)
        for sums, size in SIZES.items():
            for m, n, invocations in TILES:
                if m * n * size <= MAX_SUM_BYTES * invocations:
                    yield from self._second(sums, m, n, invocations)
        if matrix_subgroup_size(info) is not None:
            for shape in self._shapes:
                yield self._dense(shape)
                yield self._quantised(shape)

    def _second(self, sums: str, m: int, n: int, invocations: int) -> Iterator[Case]:
        """VK_NV_cooperative_matrix2, by one tile."""
        info, flexible = self._device.info, self._flexible
        for k, unroll in REGISTER_STEPS:
            tile = Matrix2Tile(sums, m, n, k, invocations, unroll)
            if tile.fits(info, flexible) and tile.divides(*SQUARE):
                yield self._matrix2(tile, SQUARE, once=True)
        for k, unroll in MEMORY_STEPS:
            tile = Matrix2Tile(sums, m, n, k, invocations, unroll)
            for shape in self._shapes:
                if tile.fits(info, flexible) and tile.divides(*shape):
                    yield self._matrix2(tile, shape, once=False)

    def _khr(self, group: str, *, from_shared: bool) -> Case:
        device, request = self._device, matrix_rate_request(self._device.info, from_shared=from_shared)

        def dispatch(recorder: CommandRecorder, workgroups: int, rounds: int) -> None:
            matrix_rate(
                recorder,
                device.kernels,
                device.info,
                source=self._weights.address,
                sums=self._y.address,
                workgroups=workgroups,
                rounds=rounds,
                from_shared=from_shared,
            )

        def error() -> float:
            """Of the sum of a workgroup's elements, beside the sum of what they are without their signs."""
            self._run(lambda recorder: dispatch(recorder, 1, CHECK_ROUNDS))
            lanes = int(request.constants["WORKGROUP"])
            found = float(self._read(self._y, [0], np.float32, lanes).sum())
            factors = self._read(self._weights, [0], np.float16, 2 * SIDE * STRIDE)
            left, right = factors.reshape(2, SIDE, STRIDE)[:, :, : 32 if from_shared else 16]
            wanted = (1 if from_shared else 2) * CHECK_ROUNDS * left @ right.T
            return abs(found - float(wanted.sum())) / float(np.abs(wanted).sum())

        return Case(
            group=group,
            kernel="matrix_rate",
            shape="",
            flops=2 * SIDE * SIDE * 32 * ROUNDS * WORKGROUPS,
            kernels=self._device.kernels,
            request=request,
            allowed=1e-4,
            prepare=lambda _: None,
            record=lambda recorder, _: dispatch(recorder, WORKGROUPS, ROUNDS),
            error=error,
        )

    def _matrix2(self, tile: Matrix2Tile, shape: Shape, *, once: bool) -> Case:
        m, n, k = shape
        per_round = 2 * m * n * tile.k
        rounds = max(1, round(SQUARE_FLOPS / per_round / tile.unroll)) * tile.unroll
        columns = tile.k if once else k

        def dispatch(recorder: CommandRecorder, copy: int, times: int) -> None:
            matrix2_rate(
                recorder,
                self._matrix2_kernels,
                tile,
                a=self._halves.address + SKIP,
                b=self._copy(n * k * 2, copy),
                y=self._y.address,
                shape=shape,
                rounds=times if once else None,
            )

        def error() -> float:
            self._run(lambda recorder: dispatch(recorder, 0, tile.unroll))
            rows, places = _samples(m), _samples(n)
            if (shape, columns) not in self._wanted:
                a = self._rows(self._halves, SKIP, k, rows)[:, :columns]
                b = self._rows(self._weights, 0, k, places)[:, :columns]
                self._wanted[shape, columns] = a @ b.T
            times = tile.unroll if once else 1
            return self._off(times * self._wanted[shape, columns], rows, places, n, tile.sums)

        return Case(
            group=f"NV2, {'registers' if once else 'memory'}, {tile.sums} sums",
            kernel=f"{tile.m}×{tile.n}×{tile.k} with {tile.invocations} lanes, {tile.unroll} at a time",
            shape="" if once else "x".join(map(str, shape)),
            flops=per_round * rounds if once else 2 * m * n * k,
            kernels=self._matrix2_kernels,
            request=tile.request(from_memory=not once),
            allowed=ALLOWED[tile.sums],
            prepare=lambda _: None,
            record=lambda recorder, copy: dispatch(recorder, copy, rounds),
            error=error,
        )

    def _dense(self, shape: Shape) -> Case:
        _, n, k = shape

        def weights(places: list[int]) -> Doubles:
            return self._rows(self._weights, 0, k, places)

        def copy(index: int) -> Tensor:
            return Tensor(self._copy(n * k * 2, index), (n, k), DType.F16)

        return self._own("ours, F16", shape, copy, weights)

    def _quantised(self, shape: Shape) -> Case:
        _, n, k = shape
        kind = QuantFormat.Q4_0
        nbytes = QuantTensor.size((n, k), kind)

        def weights(places: list[int]) -> Doubles:
            quants, _, scales = (place - self._weights.address for place in self._quant(shape).planes)
            blocks = k // 32
            codes = self._read(self._weights, [quants + row * blocks * 16 for row in places], np.uint8, blocks * 16)
            factors = self._read(self._weights, [scales + row * blocks * 2 for row in places], np.float16, blocks)
            return np.stack([_decode(*row) for row in zip(codes, factors, strict=True)])

        def copy(index: int) -> QuantTensor:
            return QuantTensor(self._copy(nbytes, index), (n, k), kind)

        return self._own("ours, Q4_0", shape, copy, weights)

    def _quant(self, shape: Shape) -> QuantTensor:
        return QuantTensor(self._weights.address, shape[1:], QuantFormat.Q4_0)

    def _own(
        self,
        group: str,
        shape: Shape,
        copy: Callable[[int], Tensor | QuantTensor],
        weights: Callable[[list[int]], Doubles],
    ) -> Case:
        """One of the engine's kernels, by its plan for weights of which `copy` gives one of many, `weights` rows."""
        m, n, k = shape
        plan = plan_linear(self._device.info, Product.of(element_of(copy(0)), m, n, k))
        request, x = kernel_request(plan), Tensor(self._floats.address, (m, k), DType.F32)
        rows = self._room.rows(x, plan.form)

        def prepare(recorder: CommandRecorder) -> None:
            if not isinstance(rows, Tensor):
                prepare_input(recorder, self._device.kernels, self._device.info, x=x, out=rows)

        def record(recorder: CommandRecorder, index: int) -> None:
            dispatch_plan(
                recorder,
                self._device.kernels,
                plan,
                x=rows,
                weight=copy(index),
                out=Tensor(self._y.address, (m, n), DType.F32),
                num_tokens=m,
                scratch=self._room,
            )

        def error() -> float:
            def both(recorder: CommandRecorder) -> None:
                prepare(recorder)
                recorder.barrier()
                record(recorder, 0)

            self._run(both)
            sampled, places = _samples(m), _samples(n)
            floats = self._rows(self._floats, 0, k, sampled, np.float32)
            return self._off(floats @ weights(places).T, sampled, places, n, "f32")

        constants = request.constants
        tile = "×".join(str(constants.get(name, "?")) for name in ("TILE_T", "TILE_N", "TILE_K"))
        return Case(
            group=group,
            kernel=f"{request.name} {tile}, {constants.get('SPLITS', 1)} splits",
            shape="x".join(map(str, shape)),
            flops=2 * m * n * k,
            kernels=self._device.kernels,
            request=request,
            allowed=ALLOWED["f32"],
            prepare=prepare,
            record=record,
            error=error,
        )

    def _copy(self, nbytes: int, index: int) -> int:
        """Address of one of the copies of weights of this size; the numbers in them differ."""
        step = -(-nbytes // 256) * 256
        return self._weights.address + index % max(1, self._weights.nbytes // step) * step

    def _run(self, record: Callable[[CommandRecorder], object]) -> None:
        """Run what is recorded, on an output of no numbers."""
        recorder = self.pool.recorder()
        recorder.fill(self._y, 0, self._y.nbytes, 0xFFFFFFFF)
        recorder.barrier()
        record(recorder)
        commands = recorder.end()
        self._device.compute.timeline.wait(self._device.compute.submit([commands]))
        self.pool.free(commands)

    def _read(self, buffer: Buffer, offsets: list[int], kind: type[np.generic], count: int) -> Doubles:
        """Return `count` numbers from each of the offsets, in bytes, on."""
        nbytes = np.dtype(kind).itemsize * count
        staging = self._device.memory.allocate(nbytes * len(offsets), MemoryKind.STAGING, name="read")
        assert staging.mapped is not None
        recorder = self.pool.recorder()
        for place, offset in enumerate(offsets):
            recorder.copy(buffer, offset, staging, place * nbytes, nbytes)
        recorder.host_barrier()
        commands = recorder.end()
        self._device.compute.timeline.wait(self._device.compute.submit([commands]))
        self.pool.free(commands)
        values = np.frombuffer(staging.mapped, kind).astype(np.float64).reshape(len(offsets), count)
        staging.close()
        return values

    def _rows(
        self, buffer: Buffer, offset: int, columns: int, rows: list[int], kind: type[np.generic] = np.float16
    ) -> Doubles:
        pitch = columns * np.dtype(kind).itemsize
        return self._read(buffer, [offset + row * pitch for row in rows], kind, columns)

    def _off(self, wanted: Doubles, rows: list[int], places: list[int], n: int, sums: str) -> float:
        """The largest error, beside the largest number that is wanted."""
        found = self._rows(self._y, 0, n, rows, np.float32 if sums == "f32" else np.float16)[:, places]
        error = np.abs(found - wanted).max() / np.abs(wanted).max()
        return float(error) if np.isfinite(error) else float("inf")


def _samples(size: int) -> list[int]:
    drawn = np.random.default_rng(size).integers(0, size, SAMPLES)
    return sorted({0, 1, size - 2, size - 1, *map(int, drawn)})


def _decode(codes: Doubles, scales: Doubles) -> Doubles:
    """A row of Q4_0 as it lies on the device: quads of elements are bytes 0, 2, 1 and 3 of a word's nibbles."""
    quad = np.arange(8)
    places = (quad // 4 * 2 + quad % 2)[:, None] * 4 + np.array([0, 2, 1, 3])
    nibbles = codes.reshape(-1, 16)[:, places].astype(np.int64) >> (4 * (quad % 4 // 2))[:, None] & 15
    return ((nibbles - 8) * scales[:, None, None]).reshape(-1)
