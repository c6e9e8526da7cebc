"""Tensors that a model wants of a checkpoint, beside what that has: their shapes, and the types that they get. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.config import WeightScheme
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.tensor import DType, QuantFormat
from unicorn_async.weights.column_order import check_order
from unicorn_async.weights.packed import check_packed, check_values, may_stay
from unicorn_async.weights.rules import WeightKind, device_type

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from unicorn_async.checkpoint.checkpoint import Checkpoint
    from unicorn_async.checkpoint.source_tensor import SourceTensor
    from unicorn_async.tensor import ElementType
    from unicorn_async.weights.row_order import HeadOrder, RowRun

_TYPES: Mapping[str, ElementType] = {kind.value: kind for kind in (*DType, *QuantFormat)}
_FILE_TYPES: tuple[ElementType, ...] = (*DType, *(kind for kind in QuantFormat if kind.source_bytes))


@dataclass(frozen=True, slots=True)
class WantedTensor:
    """One tensor of the checkpoint that a model needs.

    `name` is canonical, `shape` what the configuration says. `layer` is -1 for the embeddings, then 0 to L - 1, and L
    for the final norm and the head. Its rows go to row `row_offset` of the destination `dest`, which several may share.
    `as_f32` asks for F32 (norm weights, biases). `is_table` marks embeddings and output head. With a `head_order` the
    rows of heads lie in that order in the file, with `runs` all its rows as these say. A `stacked` one is so many
    matrices there, in a dimension of its own. Of one that `is_transposed` dense ones of the file
    have rows for columns. One that `is_gathered` may have its columns sorted by groups: its input is gathered likewise.
    Those of a destination whose rows are those of experts, `is_expert`, have one type.
    With `file_rows` it is a part of a matrix of so many rows, those of its `runs`, and of a packed one it becomes F16
    where it can't stay as it is. What `is_kept` is never quantised.
    """

    name: str
    shape: tuple[int, ...]
    layer: int
    dest: str
    row_offset: int = 0
    as_f32: bool = False
    is_table: bool = False
    head_order: HeadOrder | None = None
    stacked: int = 1
    runs: tuple[RowRun, ...] = ()
    is_transposed: bool = False
    is_gathered: bool = False
    is_expert: bool = False
    file_rows: int = 0
    is_kept: bool = False

    @property
    def file_shape(self) -> tuple[int, ...]:
        """The shape that it has in the file, or that of which it is a part."""
        rows, *others = self.shape
        if self.file_rows:
            return (self.file_rows, *([rows // self.stacked] if self.is_transposed else others))
        return self.shape if self.stacked == 1 else (self.stacked, rows // self.stacked, *others)

    @property
    def kind(self) -> WeightKind:
        """What it is for the rules of the types."""
        if self.is_kept:
            return WeightKind.KEPT
        return WeightKind.VECTOR if self.as_f32 else WeightKind.TABLE if self.is_table else WeightKind.MATRIX


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """A wanted tensor that the checkpoint has, its type there and on the device, and whether adapters change it."""

    want: WantedTensor
    source: SourceTensor
    source_kind: ElementType
    kind: ElementType
    is_adapted: bool

    @property
    def is_turned(self) -> bool:
        """Whether rows lie as columns in the file."""
        return _is_turned(self.want, self.source)


def find_tensor(
    checkpoint: Checkpoint, want: WantedTensor, scheme: WeightScheme, adapted: Collection[str]
) -> FoundTensor:
    """Find a tensor in the checkpoint; `adapted` are the names of those that adapters change.

    Raises:
        CheckpointError: it is missing, or its shape contradicts the configuration.
        UnsupportedModelError: its dtype can't be used, or not by the scheme or an adapter.
    """
    source = _source(checkpoint, want)
    kind = _final_type(want, source, scheme)
    return FoundTensor(want, source, _TYPES[source.dtype], kind, _is_adapted(want, source, adapted))


def file_types() -> tuple[str, ...]:
    """Return the types that weights may have in a file, as files call them."""
    return tuple(kind.value for kind in _FILE_TYPES)


def _source(checkpoint: Checkpoint, want: WantedTensor) -> SourceTensor:
    source = checkpoint.tensors.get(want.name)
    if source is None:
        raise CheckpointError(f"{checkpoint.path}: tensor {want.name!r} of shape {list(want.file_shape)} is missing")
    kind = _TYPES.get(source.dtype)
    if (kind not in _FILE_TYPES and source.packing is None) or (want.as_f32 and not isinstance(kind, DType)):
        usable = [known.value for known in _FILE_TYPES if not want.as_f32 or isinstance(known, DType)]
        raise UnsupportedModelError(
            f"{checkpoint.path}: tensor {source.name!r}: dtype {source.dtype} is not supported, "
            f"only {', '.join(usable)}"
        )
    if want.file_rows and source.packing is None and not isinstance(kind, DType):
        raise UnsupportedModelError(
            f"{checkpoint.path}: tensor {source.name!r} is quantised, as {source.dtype}, and would be taken apart, "
            "which blocks of GGUF files can't be; those of newer converters have its parts, attn_k_b and attn_v_b"
        )
    shape = want.file_shape
    if _is_turned(want, source) and not want.file_rows:
        *outer, rows, columns = shape
        shape = (*outer, columns, rows)
    if _without_ones(source.shape) != _without_ones(shape):  # one format keeps dimensions that another leaves out
        raise CheckpointError(
            f"{checkpoint.path}: tensor {source.name!r}: {checkpoint.config_name} asks for shape {list(shape)}, "
            f"the file has {list(source.shape)}"
        )
    return source


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _final_type(want: WantedTensor, source: SourceTensor, scheme: WeightScheme) -> ElementType:
    kind = _TYPES[source.dtype]
    if isinstance(kind, QuantFormat) and scheme is not WeightScheme.AUTO:
        raise UnsupportedModelError(
            f"tensor {source.name!r} is quantised as {source.dtype} already, so its weights can't become {scheme.value}"
        )
    final = device_type(want.kind, kind, scheme)
    if _is_turned(want, source) and final is not kind:
        raise UnsupportedModelError(
            f"tensor {source.name!r} has rows for columns in the file, so its weights can't become {scheme.value}: "
            "load it as it is, or use another checkpoint (in MXFP4, or GGUF)"
        )
    if want.file_rows and isinstance(final, QuantFormat) and (want.is_transposed or not may_stay(source, final)):
        check_values(source)
        return DType.F16
    if isinstance(final, QuantFormat) and want.shape[-1] % final.layout.unit:
        raise UnsupportedModelError(
            f"tensor {source.name!r}: rows of {want.shape[-1]} elements are no whole blocks of {final.value}, "
            f"which have {final.layout.unit}"
        )
    if source.packing is not None and isinstance(final, QuantFormat) and not want.file_rows:
        if want.is_transposed:
            raise UnsupportedModelError(f"tensor {source.name!r}: {final.value} weights with rows for columns")
        check_packed(source, want.file_shape, final)
        check_order(source, is_gathered=want.is_gathered)
    return final


def _is_adapted(want: WantedTensor, source: SourceTensor, adapted: Collection[str]) -> bool:
    if want.name not in adapted:
        return False
    if isinstance(_TYPES[source.dtype], QuantFormat):
        raise UnsupportedModelError(
            f"tensor {source.name!r} is quantised as {source.dtype} already, and an adapter changes it: "
            "blend before quantising, from an F32, F16 or BF16 checkpoint"
        )
    if _is_turned(want, source):
        raise UnsupportedModelError(
            f"tensor {source.name!r} has rows for columns in the file, and an adapter changes it"
        )
    return True


def _is_turned(want: WantedTensor, source: SourceTensor) -> bool:
    return want.is_transposed and isinstance(_TYPES[source.dtype], DType)
