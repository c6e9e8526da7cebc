"""Plans: which bytes go where."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.checkpoint import builders
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.config import WeightScheme
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.tensor import DType, QuantFormat, QuantTensor
from unicorn_async.weights.chunk import Transform
from unicorn_async.weights.plan import LoadPlan, make_plan
from unicorn_async.weights.row_order import grouped_runs
from unicorn_async.weights.wanted import WantedTensor

if TYPE_CHECKING:
    from pathlib import Path

WANTED = (
    WantedTensor("norm", (8,), 2, "norm", as_f32=True),
    WantedTensor("embed", (64, 8), -1, "embed"),
    WantedTensor("q", (8, 8), 0, "qkv", 0),
    WantedTensor("k", (4, 8), 0, "qkv", 8),
    WantedTensor("v", (4, 8), 0, "qkv", 12),
    WantedTensor("up", (16, 8), 1, "up"),
)


def plan_of(
    tmp_path: Path,
    wanted: tuple[WantedTensor, ...] = WANTED,
    chunk_bytes: int = 256,
    scheme: WeightScheme = WeightScheme.AUTO,
    **dtypes: str,
) -> LoadPlan:
    tensors = {want.name: builders.tensor(dtypes.get(want.name, "BF16"), *want.shape) for want in WANTED}
    tensors["rotary.inv_freq"] = builders.tensor("F32", 4)
    return make_plan(Checkpoint.read(builders.write(tmp_path, tensors)), wanted, chunk_bytes=chunk_bytes, scheme=scheme)


def test_chunks_come_in_the_order_of_the_layers(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert plan.layers == (-1, 0, 1, 2)
    assert [chunk.layer for chunk in plan.chunks] == sorted(chunk.layer for chunk in plan.chunks)
    assert [dest.name for dest in plan.destinations] == ["embed", "qkv", "up", "norm"]


def test_every_byte_of_every_destination_is_written_once(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, up="F32")
    for dest in plan.destinations:
        end = 0
        for chunk in sorted((c for c in plan.chunks if c.dest == dest.name), key=lambda c: c.dest_offset):
            assert chunk.dest_offset == end
            end += chunk.num_elements * dest.dtype.itemsize
        assert end == dest.nbytes


def test_chunks_are_bounded_and_begin_at_whole_elements(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, scheme=WeightScheme.F16, embed="F32")
    assert max(chunk.nbytes for chunk in plan.chunks) == 256
    embed = [chunk for chunk in plan.chunks if chunk.dest == "embed"]
    assert len(embed) == 8
    assert [chunk.dest_offset for chunk in embed] == [128 * i for i in range(8)]
    assert plan.bytes_to_read == 64 * 8 * 4 + (16 * 8 + 16 * 8 + 8) * 2


def test_parts_that_follow_each_other_in_the_file_are_read_at_once(tmp_path: Path) -> None:
    qkv = [chunk for chunk in plan_of(tmp_path).chunks if chunk.dest == "qkv"]
    assert [(chunk.dest_offset, chunk.nbytes) for chunk in qkv] == [(0, 256)]
    wanted = (WANTED[2], WantedTensor("v", (4, 8), 0, "qkv", 8), WantedTensor("k", (4, 8), 0, "qkv", 12))
    qvk = [chunk for chunk in plan_of(tmp_path, wanted).chunks]
    assert [(chunk.dest_offset, chunk.nbytes) for chunk in qvk] == [(0, 128), (192, 64), (128, 64)]


def test_rows_that_lie_in_groups_come_part_by_part(tmp_path: Path) -> None:
    """Two groups of a row, another, and six of a third part."""
    runs = grouped_runs(2, (1, 1, 6))
    assert [(run.file_row, run.row, run.count) for run in runs] == [
        *((0, 0, 1), (1, 2, 1), (2, 4, 6)),
        *((8, 1, 1), (9, 3, 1), (10, 10, 6)),
    ]
    chunks = plan_of(tmp_path, (WantedTensor("up", (16, 8), 1, "up", runs=runs),)).chunks
    first = min(chunk.offset for chunk in chunks)
    assert [(chunk.offset - first, chunk.dest_offset, chunk.nbytes) for chunk in chunks] == [
        (16 * run.file_row, 16 * run.row, 16 * run.count) for run in runs
    ]


def test_matrices_that_a_file_stacks_lie_one_behind_the_other(tmp_path: Path) -> None:
    checkpoint = Checkpoint.read(builders.write(tmp_path, {"up": builders.tensor("BF16", 4, 2, 8)}))
    want = WantedTensor("up", (8, 8), 1, "up", stacked=4)
    (chunk,) = make_plan(checkpoint, (want,)).chunks
    assert (chunk.dest_offset, chunk.nbytes) == (0, 2 * 64)
    with pytest.raises(CheckpointError, match=r"asks for shape \[2, 4, 8\], the file has \[4, 2, 8\]"):
        make_plan(checkpoint, (replace(want, stacked=2),))


@pytest.mark.parametrize(
    ("source", "dtype", "transform"),
    [
        ("BF16", DType.BF16, Transform.COPY),
        ("F16", DType.F16, Transform.COPY),
        ("F32", DType.F32, Transform.COPY),
    ],
)
def test_matrices_keep_their_type(tmp_path: Path, source: str, dtype: DType, transform: Transform) -> None:
    plan = plan_of(tmp_path, up=source)
    assert next(dest for dest in plan.destinations if dest.name == "up").dtype is dtype
    assert {chunk.transform for chunk in plan.chunks if chunk.dest == "up"} == {transform}


@pytest.mark.parametrize(
    ("source", "transform"), [("BF16", Transform.TO_F32), ("F16", Transform.TO_F32), ("F32", Transform.COPY)]
)
def test_vectors_become_f32(tmp_path: Path, source: str, transform: Transform) -> None:
    plan = plan_of(tmp_path, norm=source)
    assert plan.destinations[-1].dtype is DType.F32
    assert plan.chunks[-1].transform is transform


def test_tensors_that_nobody_wants_are_listed(tmp_path: Path) -> None:
    assert plan_of(tmp_path).ignored == ("rotary.inv_freq",)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'down' of shape \[8, 16\] is missing"):
        plan_of(tmp_path, (*WANTED, WantedTensor("down", (8, 16), 1, "down")))


def test_a_shape_that_contradicts_the_configuration_shows_both(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"asks for shape \[8, 16\], the file has \[16, 8\]"):
        plan_of(tmp_path, (WantedTensor("up", (8, 16), 1, "up"),))


def test_an_unsupported_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="I64"):
        plan_of(tmp_path, up="I64")


def test_parts_of_different_types_become_destinations_of_their_own(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, k="F16")
    own = {dest.name: dest.dtype for dest in plan.destinations if dest.whole == "qkv"}
    assert own == {"qkv.0": DType.BF16, "qkv.1": DType.F16, "qkv.2": DType.BF16}


def test_experts_of_different_types_are_refused(tmp_path: Path) -> None:
    wanted = tuple(replace(want, is_expert=want.dest == "qkv") for want in WANTED)
    with pytest.raises(
        UnsupportedModelError, match=r"'q' \(BF16\) and 'k' \(F16\): experts of one layer .*; --weights f16"
    ):
        plan_of(tmp_path, wanted, k="F16")


def test_parts_of_different_types_become_one_type_on_request(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, q="F16", k="F32", v="BF16", scheme=WeightScheme.F16)
    assert next(dest for dest in plan.destinations if dest.name == "qkv").dtype is DType.F16


def quantised(tmp_path: Path, scheme: WeightScheme, chunk_bytes: int = 1024) -> LoadPlan:
    """A plan of matrices with 128 columns: a table, and two parts of one tensor of different types."""
    tensors = {
        "embed": builders.tensor("BF16", 64, 128),
        "gate": builders.tensor("F32", 32, 128),
        "up": builders.tensor("BF16", 16, 128),
        "norm": builders.tensor("BF16", 128),
    }
    wanted = (
        WantedTensor("embed", (64, 128), -1, "embed", is_table=True),
        WantedTensor("gate", (32, 128), 0, "gate_up"),
        WantedTensor("up", (16, 128), 0, "gate_up", 32),
        WantedTensor("norm", (128,), 1, "norm", as_f32=True),
    )
    checkpoint = Checkpoint.read(builders.write(tmp_path, tensors))
    return make_plan(checkpoint, wanted, scheme=scheme, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize(
    ("scheme", "table", "matrix"),
    [
        (WeightScheme.F16, DType.F16, DType.F16),
        (WeightScheme.INT8, QuantFormat.INT8, QuantFormat.INT8),
        (WeightScheme.INT4, QuantFormat.INT8, QuantFormat.INT4),
        (WeightScheme.NF4, QuantFormat.INT8, QuantFormat.NF4),
    ],
)
def test_a_scheme_is_for_matrices_with_a_rule_of_its_own_for_tables(
    tmp_path: Path, scheme: WeightScheme, table: DType | QuantFormat, matrix: DType | QuantFormat
) -> None:
    plan = quantised(tmp_path, scheme)
    found = {name: kind for (_, name), kind in plan.device_types.items()}
    assert found == {"embed": table, "gate": matrix, "up": matrix, "norm": DType.F32}
    assert [dest.dtype for dest in plan.destinations] == [table, matrix, DType.F32]


@pytest.mark.parametrize("chunk_bytes", [16, 100, 1024, 1 << 20])
def test_every_element_of_a_quantised_tensor_is_written_once_in_whole_units(tmp_path: Path, chunk_bytes: int) -> None:
    plan = quantised(tmp_path, WeightScheme.NF4, chunk_bytes)
    (dest,) = (dest for dest in plan.destinations if dest.name == "gate_up")
    assert dest.nbytes == QuantTensor.size((48, 128), QuantFormat.NF4)
    end = 0
    chunks = [chunk for chunk in plan.chunks if chunk.dest == "gate_up"]
    for chunk in sorted(chunks, key=lambda chunk: chunk.first_element):
        assert chunk.transform is Transform.QUANTIZE
        assert chunk.first_element == end
        assert chunk.num_elements % 64 == 0
        assert chunk.nbytes <= max(chunk_bytes, 256)
        end += chunk.num_elements
    assert end == 48 * 128


def test_tensors_that_adapters_change_are_blended_and_no_others(tmp_path: Path) -> None:
    checkpoint = Checkpoint.read(
        builders.write(tmp_path, {want.name: builders.tensor("BF16", *want.shape) for want in WANTED})
    )
    plan = make_plan(checkpoint, WANTED, adapted={"q", "k", "up"})
    found = {(chunk.dest, chunk.first_element, chunk.num_elements, chunk.transform) for chunk in plan.chunks}
    assert ("qkv", 0, 96, Transform.BLEND) in found, "q and k lie side by side, and are read at once"
    assert ("qkv", 96, 32, Transform.COPY) in found
    assert ("up", 0, 128, Transform.BLEND) in found
    assert {chunk.transform for chunk in plan.chunks if chunk.dest == "embed"} == {Transform.COPY}
    assert plan.device_types["qkv", "q"] is DType.BF16


def test_a_chunk_knows_its_tensors(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, chunk_bytes=144)
    assert [(part.name, part.first_element, part.num_elements) for part in plan.parts["qkv"]] == [
        ("q", 0, 64),
        ("k", 64, 32),
        ("v", 96, 32),
    ]
    first, second = (chunk for chunk in plan.chunks if chunk.dest == "qkv")
    assert [(p.name, p.first_element, p.num_elements) for p in plan.parts_of(first)] == [("q", 0, 64), ("k", 64, 8)]
    assert [(p.name, p.first_element, p.num_elements) for p in plan.parts_of(second)] == [("k", 72, 24), ("v", 96, 32)]
