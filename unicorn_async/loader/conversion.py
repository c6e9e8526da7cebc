"""What the device does to weights between staging memory and their places."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.ops.columns import column_order, order_kernel
from unicorn_async.ops.convert import convert, convert_kernel
from unicorn_async.ops.dequantize import dequantize, dequantize_kernel
from unicorn_async.ops.lora import LowRankChange, add_change, change_kernel
from unicorn_async.ops.packed import PlanePart, codes_kernel, plane_kernel, relayout_codes, relayout_plane
from unicorn_async.ops.quantize import quantize, quantize_kernel, relayout, relayout_kernel
from unicorn_async.ops.transpose import transpose, transpose_kernel
from unicorn_async.packing import Codes, PlaneUse
from unicorn_async.tensor import QUANT_BLOCK, BlockPlane, DType, QuantFormat, QuantTensor
from unicorn_async.weights.chunk import Chunk, PlaneChunk, Transform

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.kernel import KernelLibrary, KernelRequest
    from unicorn_async.loader.lora_factors import LoraFactors
    from unicorn_async.loader.range_check import RangeCounters
    from unicorn_async.loader.uploader import ConvertRecorder
    from unicorn_async.lora.plan import LoraPlan, PlannedChange
    from unicorn_async.tensor import ElementType
    from unicorn_async.weights.chunk import PlannedChunk
    from unicorn_async.weights.plan import LoadPlan, TensorPart
    from unicorn_async.weights.row_order import RowRun


class WeightConverter:
    """Records the transforms of a plan's chunks.

    A chunk may begin in the middle of a row, and have rows of several tensors; what does not fit a tensor's type is
    counted for that tensor.
    """

    def __init__(
        self,
        kernels: KernelLibrary,
        plan: LoadPlan,
        out_of_range: RangeCounters,
        lora: LoraPlan,
        factors: LoraFactors,
    ) -> None:
        self._kernels = kernels
        self._plan = plan
        self._out_of_range = out_of_range
        self._lora = lora
        self._factors = factors
        self._shapes = {dest.name: dest.shape for dest in plan.destinations}
        self._starts = {part.name: part.first_element for parts in plan.parts.values() for part in parts}

    def record(self, recorder: CommandRecorder, source: int, place: int, chunk: PlannedChunk) -> None:
        """Record a chunk's transform from `source` to its part of the destination at `place`; a `ConvertRecorder`.

        Adapters' factors are ready where the chunk is to be blended.
        """
        if isinstance(chunk, PlaneChunk):
            self._relayout_plane(recorder, source, place, chunk)
            return
        kind, source_kind = chunk.dest_dtype, chunk.source_dtype
        if isinstance(source_kind, Codes):
            self._relayout_codes(recorder, source, source_kind, place, chunk)
            return
        if not isinstance(source_kind, DType):
            assert isinstance(kind, QuantFormat), "blocks stay blocks"
            whole = QuantTensor(place, self._shapes[chunk.dest], kind)
            relayout(
                recorder,
                self._kernels,
                src=source,
                dst=whole,
                first_element=chunk.first_element,
                num_elements=chunk.num_elements,
                plane=source_kind if isinstance(source_kind, BlockPlane) else None,
            )
            return
        if chunk.transform is Transform.TRANSPOSE:
            self._transpose(recorder, source, source_kind, place, chunk)
            return
        if chunk.transform is Transform.BLEND:
            source, source_kind = self._blend(recorder, source, source_kind, chunk), DType.F32
        if kind is DType.F32:
            self._convert(recorder, source, source_kind, place, kind, chunk.first_element, chunk.num_elements, 0)
            return
        for part in self._plan.parts_of(chunk):
            start = source + (part.first_element - chunk.first_element) * source_kind.itemsize
            self._narrow(recorder, start, source_kind, place, chunk, part)
        recorder.host_barrier()  # the CPU reads the counters

    def _relayout_codes(self, recorder: CommandRecorder, source: int, codes: Codes, place: int, chunk: Chunk) -> None:
        assert isinstance(chunk.dest_dtype, QuantFormat), "codes stay codes"
        for part in self._plan.parts_of(chunk):
            before = (part.first_element - chunk.first_element) // QUANT_BLOCK
            relayout_codes(
                recorder,
                self._kernels,
                src=source + before * codes.source_bytes,
                codes=codes,
                dst=QuantTensor(place, self._shapes[chunk.dest], chunk.dest_dtype),
                first_element=part.first_element,
                num_elements=part.num_elements,
                out_of_range=self._out_of_range.address(chunk.dest, part.name),
            )
        recorder.host_barrier()  # the CPU reads the counters

    def _relayout_plane(self, recorder: CommandRecorder, source: int, place: int, chunk: PlaneChunk) -> None:
        plane, order = chunk.plane, 0
        if plane.use is PlaneUse.ORDER:
            self._order_columns(recorder, source, place, chunk.columns, plane.expected)
            return
        if plane.use is PlaneUse.VALUES:
            self._dequantize(recorder, source, place, chunk)
            return
        assert isinstance(chunk.dest_dtype, QuantFormat), "codes stay codes"
        beside = source + chunk.pieces[1][0] if plane.beside else 0
        if plane.groups is not None:
            order = source + chunk.order_offset
            self._order_columns(recorder, beside, order, chunk.columns, plane.expected)
            recorder.barrier()  # for the order, and for what another chunk has left in the same blocks
        for run in chunk.runs:
            relayout_plane(
                recorder,
                self._kernels,
                plane=chunk.plane,
                codes=chunk.codes,
                part=replace(_plane_part(chunk, source, run), levels=beside, order=order),
                dst=QuantTensor(place, self._shapes[chunk.dest], chunk.dest_dtype),
                unexpected=self._out_of_range.plane_address(chunk.plane.name),
            )
        recorder.host_barrier()

    def _dequantize(self, recorder: CommandRecorder, source: int, place: int, chunk: PlaneChunk) -> None:
        (part,) = self._plan.parts[chunk.dest]
        beside = [source + start for start, _ in chunk.pieces[1:]]
        for run in chunk.runs:
            dequantize(
                recorder,
                self._kernels,
                plane=chunk.plane,
                codes=chunk.codes,
                part=_plane_part(chunk, source, run),
                beside=beside,
                dst=place,
                turned_rows=chunk.turned_rows,
                out_of_range=self._out_of_range.address(chunk.dest, part.name),
            )
        recorder.host_barrier()  # the CPU reads the counters

    def _order_columns(self, recorder: CommandRecorder, groups: int, out: int, columns: int, group: int) -> None:
        column_order(recorder, self._kernels, groups=groups, out=out, columns=columns, group=group)

    def _transpose(self, recorder: CommandRecorder, source: int, kind: DType, place: int, chunk: Chunk) -> None:
        (part,) = self._plan.parts[chunk.dest]
        rows, columns = self._shapes[chunk.dest]
        transpose(
            recorder,
            self._kernels,
            src=source,
            dst=place,
            dtype=kind,
            shape=(part.stacked, columns, rows // part.stacked),
            first_element=chunk.first_element,
            num_elements=chunk.num_elements,
        )

    def _narrow(
        self, recorder: CommandRecorder, source: int, source_kind: DType, place: int, chunk: Chunk, part: TensorPart
    ) -> None:
        kind, out_of_range = chunk.dest_dtype, self._out_of_range.address(chunk.dest, part.name)
        if isinstance(kind, DType):
            self._convert(
                recorder, source, source_kind, place, kind, part.first_element, part.num_elements, out_of_range
            )
            return
        quantize(
            recorder,
            self._kernels,
            src=source,
            src_dtype=source_kind,
            dst=QuantTensor(place, self._shapes[chunk.dest], kind),
            first_element=part.first_element,
            num_elements=part.num_elements,
            out_of_range=out_of_range,
        )

    def _convert(
        self,
        recorder: CommandRecorder,
        source: int,
        source_kind: DType,
        place: int,
        kind: DType,
        first_element: int,
        num_elements: int,
        out_of_range: int,
    ) -> None:
        convert(
            recorder,
            self._kernels,
            src=source,
            src_dtype=source_kind,
            dst=place + first_element * kind.itemsize,
            dst_dtype=kind,
            num_elements=num_elements,
            out_of_range=out_of_range,
        )

    def _blend(self, recorder: CommandRecorder, source: int, source_kind: DType, chunk: Chunk) -> int:
        """Record the sum of a chunk and all changes, in F32; return the address of the scratch memory that has it."""
        scratch, parts = self._factors.scratch_address, tuple(self._plan.parts_of(chunk))
        recorder.barrier()  # the chunk before this one has used the scratch memory
        self._convert(recorder, source, source_kind, scratch, DType.F32, 0, chunk.num_elements, 0)
        recorder.barrier()
        changes = [self._lora.changes.get(part.name, ()) for part in parts]
        for number in range(max(len(items) for items in changes)):
            for part, items in zip(parts, changes, strict=True):
                if number < len(items):
                    add_change(
                        recorder,
                        self._kernels,
                        weights=scratch + 4 * (part.first_element - chunk.first_element),
                        change=_on_device(items[number], self._factors),
                        first_element=part.first_element - self._starts[part.name],
                        num_elements=part.num_elements,
                    )
            recorder.barrier()
        return scratch


def prepare_conversion(kernels: KernelLibrary, plan: LoadPlan, lora: LoraPlan) -> None:
    """Compile what a `WeightConverter` and a `factor_converter` record, or wait for who does; raises as `get`."""
    kernels.prepare(replace(request, urgent=True) for request in conversion_kernels(plan, lora))


def factor_converter(kernels: KernelLibrary) -> ConvertRecorder:
    """Return what records the conversion of adapters' factors to F32."""

    def record(recorder: CommandRecorder, source: int, place: int, chunk: PlannedChunk) -> None:
        assert isinstance(chunk, Chunk) and isinstance(chunk.source_dtype, DType), "factors are dense"
        convert(
            recorder,
            kernels,
            src=source,
            src_dtype=chunk.source_dtype,
            dst=place + chunk.dest_offset,
            dst_dtype=DType.F32,
            num_elements=chunk.num_elements,
        )

    return record


def conversion_kernels(plan: LoadPlan, lora: LoraPlan) -> Iterator[KernelRequest]:
    """Name the pipelines that a plan's transforms need, and the load of adapters' factors."""
    chunks = (*plan.chunks, *lora.factors.chunks)
    yield from _plane_kernels(chunk for chunk in chunks if isinstance(chunk, PlaneChunk))
    kinds = dict.fromkeys(
        (chunk.source_dtype, chunk.dest_dtype, chunk.transform)
        for chunk in chunks
        if chunk.transform is not Transform.COPY and isinstance(chunk, Chunk)
    )
    for source, dest, transform in kinds:
        if isinstance(source, Codes):
            yield codes_kernel(source)
            continue
        if not isinstance(source, DType):
            yield relayout_kernel(source)
            continue
        if transform is Transform.TRANSPOSE:
            yield transpose_kernel(source)
            continue
        is_blended = transform is Transform.BLEND
        if is_blended:
            yield convert_kernel(source, DType.F32)
            yield change_kernel()
        yield _narrowing_kernel(DType.F32 if is_blended else source, dest)


def _plane_kernels(chunks: Iterable[PlaneChunk]) -> Iterator[KernelRequest]:
    requests = [request for chunk in chunks for request in _kernels_of(chunk)]
    yield from {(request.name, *request.constants.items()): request for request in requests}.values()


def _kernels_of(chunk: PlaneChunk) -> Iterator[KernelRequest]:
    plane = chunk.plane
    if plane.use is PlaneUse.ORDER or plane.groups is not None:
        yield order_kernel()
    if plane.use is PlaneUse.VALUES:
        yield dequantize_kernel(plane, chunk.codes, chunk.columns)
    elif plane.use is not PlaneUse.ORDER:
        assert isinstance(chunk.dest_dtype, QuantFormat), "codes stay codes"
        yield plane_kernel(plane, chunk.codes, chunk.dest_dtype)


def _narrowing_kernel(source: DType, dest: ElementType) -> KernelRequest:
    return convert_kernel(source, dest) if isinstance(dest, DType) else quantize_kernel(source, dest)


def _plane_part(chunk: PlaneChunk, source: int, run: RowRun) -> PlanePart:
    return PlanePart(source, chunk.first_line, chunk.num_lines, run.file_row, run.row, run.count, chunk.columns)


def _on_device(change: PlannedChange, factors: LoraFactors) -> LowRankChange:
    return LowRankChange(
        left=factors.address(change.left),
        right=factors.address(change.right),
        columns=change.columns,
        rank=change.rank,
        left_row=change.left_row,
        left_rank=change.left_rank,
        right_rank=change.right_rank,
        right_column=change.right_column,
        scale=change.scale,
    )
