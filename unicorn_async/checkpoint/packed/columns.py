"""AWQ and GPTQ: codes by columns in words of 32 bits, scales and zero points of groups of columns.

Source: AutoAWQ's `modules/linear/gemm.py`, GPTQModel's `nn_modules/qlinear/torch.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.packed.column_orders import ColumnOrders
from unicorn_async.checkpoint.packed.parts import plane
from unicorn_async.checkpoint.packed.settings import Settings
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.packing import Codes, Packing, PlaneUse
from unicorn_async.tensor import QuantFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.checkpoint.packed.parts import Parts
    from unicorn_async.checkpoint.source_tensor import SourceTensor
    from unicorn_async.packing import Plane

_WORD, _WORD_BITS = "I32", 32
_CODES, _ZEROS, _SCALES, _GROUPS = ".qweight", ".qzeros", ".scales", ".g_idx"


@dataclass(frozen=True, slots=True)
class Columns:
    """How matrices lie; `group_size` is 0 where rows have one scale, `zero` that of symmetric weights."""

    codes: Codes
    format: QuantFormat
    bits: int
    group_size: int
    added: int = 0  # to zero points in the file
    zero: int | None = None
    is_sorted: bool = False  # columns of a group lie anywhere

    def shape_of(self, codes: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of a matrix by the shape of its codes."""
        lines, width = codes
        return width * self.codes.rows_of_word, lines * self.codes.columns_of_word


def awq(raw: Mapping[str, object], where: str) -> Columns:
    """Read what a configuration says of AWQ.

    Raises:
        CheckpointError, UnsupportedModelError: it makes no sense, or is a kind that can't be read.
    """
    settings = Settings(raw, f"{where}: awq")
    settings.one_of("bits", 4, 4)
    settings.one_of("version", "gemm", "gemm", "GEMM")
    settings.one_of("zero_point", True, True)
    return Columns(Codes.AWQ, QuantFormat.UINT4, 4, settings.group_size())


def gptq(raw: Mapping[str, object], where: str) -> Columns:
    """Read what a configuration says of GPTQ; raises as `awq`."""
    settings = Settings(raw, f"{where}: gptq")
    bits = settings.one_of("bits", None, 4, 8)
    version = settings.one_of("checkpoint_format", "gptq", "gptq", "gptq_v2")
    settings.one_of("pack_dtype", "int32", "int32")
    rules = raw.get("dynamic") or {}
    if not isinstance(rules, dict) or any(not str(rule).startswith("-:") for rule in rules):
        raise settings.unsupported("dynamic", rules, "none, or modules to leave out alone ('-:…')")
    group_size, added = settings.group_size(), 1 if version == "gptq" else 0
    is_static = settings.flag("static_groups", default=False)
    is_sorted = settings.flag("desc_act", default=False) and group_size > 0 and not is_static
    is_symmetric = settings.flag("sym", default=True)
    if bits == 4:
        codes, zero = Codes.GPTQ4, 8 if is_symmetric else None
        kind = QuantFormat.INT4 if is_symmetric else QuantFormat.UINT4
        return Columns(codes, kind, 4, group_size, added, zero, is_sorted)
    if not is_symmetric:
        raise settings.unsupported("sym", False, "symmetric weights of 8 bits")
    return Columns(Codes.GPTQ8, QuantFormat.INT8, 8, group_size, added, 128, is_sorted)


def join(parts: Parts, kind: Columns) -> None:
    """Put what each matrix is made of together; raises CheckpointError where it does not fit."""
    orders = ColumnOrders(parts)
    for stem in parts.ending_with(_CODES):
        codes = parts.take(stem + _CODES)
        assert codes is not None, "its name ends so"
        shape = kind.shape_of(parts.matrix(codes, _WORD))
        group = kind.group_size or shape[1]
        own, others = _codes_plane(codes, kind), _group_planes(parts, stem, codes, kind, shape, group)
        groups = _groups_plane(parts, stem, codes, shape[1], group, is_needed=kind.is_sorted)
        packing = Packing(kind.codes, (own, *others, *(() if groups is None else (groups,))))
        if kind.is_sorted and groups is not None and (digest := orders.digest(groups, shape[1])):
            own = replace(own, groups=groups.piece, expected=group)
            packing = Packing(kind.codes, (own, *others), replace(groups, use=PlaneUse.ORDER), digest)
        parts.put(stem + ".weight", replace(codes, dtype=kind.format.value, shape=shape, packing=packing))
    for suffix in (_ZEROS, _GROUPS):
        for stem in parts.ending_with(suffix):
            raise CheckpointError(f"{parts.directory}: tensor {stem + suffix!r}: there is no {stem + _CODES!r}")


def _codes_plane(codes: SourceTensor, kind: Columns) -> Plane:
    return plane(
        PlaneUse.CODES,
        codes,
        width=codes.shape[1],
        row_block=kind.codes.rows_of_word,
        column_block=kind.codes.columns_of_word,
        is_turned=True,
    )


def _group_planes(
    parts: Parts, stem: str, codes: SourceTensor, kind: Columns, shape: tuple[int, int], group: int
) -> tuple[Plane, Plane]:
    """The scales and the zero points, a line for each group of columns."""
    scales, zeros = parts.need(stem + _SCALES, codes), parts.need(stem + _ZEROS, codes)
    rows, columns = shape
    of_word = _WORD_BITS // kind.bits
    if rows % of_word:
        raise UnsupportedModelError(
            f"{parts.directory}: tensor {codes.name!r}: {rows} rows, expected a multiple of {of_word}"
        )
    groups = -(-columns // group)
    parts.check(scales, scales.dtype, (groups, rows))
    parts.check(zeros, _WORD, (groups, rows // of_word))
    zero_plane = replace(
        plane(
            PlaneUse.ZEROS if kind.zero is None else PlaneUse.CHECKED_ZEROS,
            zeros,
            width=rows // of_word,
            row_block=of_word,
            column_block=group,
            is_turned=True,
        ),
        bits=kind.bits,
        added=kind.added,
        expected=kind.zero or 0,
        even_first=kind.codes is Codes.AWQ,
    )
    return parts.scales(scales, width=rows, row_block=1, column_block=group, is_turned=True), zero_plane


def _groups_plane(
    parts: Parts, stem: str, codes: SourceTensor, columns: int, group: int, *, is_needed: bool
) -> Plane | None:
    """What says of each column in which group it is, where there is such a thing."""
    groups = parts.need(stem + _GROUPS, codes) if is_needed else parts.take(stem + _GROUPS)
    if groups is None:
        return None
    parts.check(groups, _WORD, (columns,))
    own = plane(PlaneUse.GROUPS, groups, width=1, row_block=1, column_block=1, is_turned=True)
    return replace(own, expected=group)
