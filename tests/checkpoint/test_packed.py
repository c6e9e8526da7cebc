"""Tensors that packed matrices are made of are put together, or refused by their names."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.checkpoint.builders import SIZES, write
from tests.engine.packed_files import gptq, nf4
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.packed.method import joined, packed_method
from unicorn_async.checkpoint.source_tensor import SourceTensor
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.packing import Codes, PlaneUse
from unicorn_async.tensor import QuantFormat
from unicorn_async.weights.column_order import check_order, check_orders
from unicorn_async.weights.packed import check_packed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

STEM = "model.layers.0.mlp.up_proj"
STATE = "quant_state.bitsandbytes__nf4"
FOLDER = Path("folder")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64, "symmetric": True}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def compressed(*groups: Mapping[str, object], **own: object) -> dict[str, object]:
    named = {f"group_{index}": {"targets": ["Linear"], "weights": weights} for index, weights in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": named, **own}


def tensor(name: str, dtype: str, *shape: int) -> SourceTensor:
    return SourceTensor(f"{STEM}.{name}", dtype, shape, file=1, offset=64, nbytes=prod(shape) * SIZES[dtype])


def stack(name: str, dtype: str, *shape: int) -> SourceTensor:
    return replace(tensor(name, dtype, *shape), name=f"model.layers.0.mlp.experts.{name}")


def read(settings: Mapping[str, object], *tensors: SourceTensor) -> tuple[dict[str, SourceTensor], list[str]]:
    join = packed_method({"quantization_config": settings}, "folder")
    assert join is not None
    return joined(join, {tensor.name: tensor for tensor in tensors}, FOLDER)


@pytest.mark.parametrize(
    ("shape", "scale", "rows", "columns"),
    [((200, 320), (2, 3), 128, 128), ((200, 320), (200, 1), 1, 320), ((200, 320), (), 200, 320)],
    ids=["blocks", "rows", "one"],
)
def test_fp8_has_scales_for_blocks_rows_or_all(
    shape: tuple[int, ...], scale: tuple[int, ...], rows: int, columns: int
) -> None:
    other = tensor("bias", "BF16", 200)
    given = tensor("weight", "F8_E4M3", *shape), tensor("weight_scale_inv", "F32", *scale), other
    found, unread = read(FP8, *given, tensor("input_scale", "F32", 1))
    assert unread == [f"{STEM}.input_scale"] and set(found) == {f"{STEM}.weight", other.name}
    weight = found[f"{STEM}.weight"]
    assert (weight.dtype, weight.shape, weight.whole_bytes) == ("F8_E4M3", shape, 200 * 320 + 4 * prod(scale))
    assert weight.packing is not None and weight.packing.codes is Codes.E4M3
    (plane,) = weight.packing.planes
    assert (plane.use, plane.row_block, plane.column_block) == (PlaneUse.SCALES, rows, columns)
    assert found[other.name] is other


WEIGHT = tensor("weight", "F8_E4M3", 200, 320)
COLUMNS = tensor("qweight", "I32", 320, 25), tensor("qzeros", "I32", 5, 25), tensor("scales", "F16", 5, 200)
ROWS = tensor("qweight", "I32", 40, 200), *COLUMNS[1:]
PACKED = tensor("weight_packed", "I32", 200, 40)
GROUPS = tensor("weight_scale", "BF16", 200, 5)


@pytest.mark.parametrize(
    ("settings", "tensors", "message"),
    [
        (FP8, (WEIGHT,), r"up_proj.weight': there is no '.*weight_scale_inv' or '.*weight_scale'"),
        (FP8, (tensor("weight_scale", "F32", 2, 3),), r"weight_scale': there is no F8_E4M3 '.*up_proj.weight'"),
        (FP8, (WEIGHT, tensor("weight_scale_inv", "F32", 3, 2)), r"expected F32 \[2, 3\] or .*, got F32 \[3, 2\]"),
        (FP8, (WEIGHT, tensor("weight_scale_inv", "U8", 2, 3)), r"expected scales of F32, F16, BF16, got U8"),
        (FP8, (tensor("weight", "BF16", 200, 320),), "no tensor is quantised, which the configuration says"),
        (
            {**FP8, "weight_block_size": [128, 0]},
            (),
            r"weight_block_size: expected two pos.*, got \[128, 0\]",
        ),
        ({**FP8, "weight_block_size": 128}, (), "weight_block_size: expected two positive integers, got 128"),
        (AWQ, COLUMNS[:2], r"qweight': there is no '.*up_proj.scales'"),
        (AWQ, COLUMNS[1:], r"qzeros': there is no '.*up_proj.qweight'"),
        (AWQ, ROWS, r"scales': expected F16 \[1, 1600\], got F16 \[5, 200\]"),
        (GPTQ, COLUMNS, "25 rows, expected a multiple of 8"),
        (GPTQ, (*ROWS, tensor("weight", "F16", 200, 320)), r"qweight': '.*up_proj.weight' is there as well"),
        (GPTQ, (*ROWS, tensor("g_idx", "I32", 321)), r"g_idx': expected I32 \[320\], got I32 \[321\]"),
        ({**GPTQ, "desc_act": True}, ROWS, r"qweight': there is no '.*up_proj.g_idx'"),
        ({**GPTQ, "group_size": 0}, (), "group_size: expected a positive integer or -1, got 0"),
        ({**GPTQ, "sym": "yes"}, (), "sym: expected true or false, got yes"),
        (compressed(INT4), (PACKED,), r"weight_packed': there is no '.*up_proj.weight_scale'"),
        (compressed(INT4), (GROUPS,), r"weight_scale': there is no '.*up_proj.weight_packed' for it"),
        (compressed({**INT4, "group_size": 32}), (PACKED, GROUPS), r"expected BF16 \[200, 10\], got BF16 \[200, 5\]"),
        (compressed({**INT4, "symmetric": False}), (PACKED, GROUPS), r"there is no '.*up_proj.weight_zero_point'"),
        (compressed(), (), "config_groups: expected an object that is not empty"),
    ],
)
def test_what_does_not_fit_is_refused(
    settings: Mapping[str, object], tensors: tuple[SourceTensor, ...], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(settings, *tensors)


@pytest.mark.parametrize(
    ("settings", "tensors", "message"),
    [
        ({**FP8, "fmt": "e5m2"}, (), "fp8 of fmt 'e5m2', expected e4m3"),
        *(
            (compressed({**INT4, "actorder": order}), (), f"weights: actorder: {order} is not supported")
            for order in (True, "group", "dynamic")
        ),
        (
            FP8,
            (tensor("weight", "F8_E4M3", 4, 200, 320),),
            r"in the shape \[4, 200, 320\], expected one matrix",
        ),
    ],
)
def test_what_can_not_be_read_is_refused_by_its_name(
    settings: Mapping[str, object], tensors: tuple[SourceTensor, ...], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(settings, *tensors)


@pytest.mark.parametrize(
    ("block", "scale", "rows", "columns"),
    [
        ([128, 128], (4, 2, 3), 128, 128),
        ([256, 128], (4, 1, 3), 256, 128),
        ([512, 128], (4, 1, 3), 256, 128),
        (None, (4, 1, 1), 256, 320),
        (None, (4,), 256, 320),
        (None, (4, 2, 1), 128, 320),
        (None, (4, 256, 1), 1, 320),
    ],
)
def test_experts_in_one_tensor_have_scales_in_one(
    block: list[int] | None, scale: tuple[int, ...], rows: int, columns: int
) -> None:
    """For blocks, one an expert, one for its gate and one for the rest, or one a row."""
    codes, scales = stack("gate_up_proj", "F8_E4M3", 4, 256, 320), stack("gate_up_proj_scale_inv", "F32", *scale)
    unread = stack("gate_up_proj_activation_scale", "F32", 4)
    found, left = read({**FP8, "weight_block_size": block}, codes, scales, unread)
    packing = found[codes.name].packing
    assert packing is not None and list(found) == [codes.name] and left == [unread.name]
    (own,) = packing.planes
    assert (own.row_block, own.column_block, own.line_bytes) == (rows, columns, 4 * (3 if block else 1))
    check_packed(found[codes.name], (4, 256, 320), QuantFormat.F8_E4M3)


@pytest.mark.parametrize(
    ("block", "scale", "error", "message"),
    [
        ([128, 128], (4, 2, 2), CheckpointError, r"expected F32 \[4, 2, 3\], got F32 \[4, 2, 2\]"),
        (None, (4, 3, 1), CheckpointError, r"expected F32 \[4, 1, 1\] or .* or \[4, 2, 1\] .*, got F32 \[4, 3, 1\]"),
        ([96, 128], (4, 3, 3), UnsupportedModelError, r"blocks of 96 rows of matrices of 256, expected whole blocks"),
    ],
)
def test_scales_that_do_not_fit_experts_are_an_error_with_both_shapes(
    block: list[int] | None, scale: tuple[int, ...], error: type[Exception], message: str
) -> None:
    codes, scales = stack("gate_up_proj", "F8_E4M3", 4, 256, 320), stack("gate_up_proj_scale_inv", "F32", *scale)
    with pytest.raises(error, match=message):
        read({**FP8, "weight_block_size": block}, codes, scales)


def test_a_matrix_of_one_column_is_none_of_one_row() -> None:
    """Elsewhere dimensions of one are left out; here scales would be looked for where there are none."""
    found, _ = read(FP8, tensor("weight", "F8_E4M3", 320, 1), tensor("weight_scale_inv", "F32", 3, 1))
    with pytest.raises(UnsupportedModelError, match=r"weights of shape \[320, 1\], expected \[1, 320\]"):
        check_packed(found[f"{STEM}.weight"], (1, 320), QuantFormat.F8_E4M3)


@pytest.mark.parametrize(
    ("part", "changed", "message"),
    [
        ("absmax", ("U8", np.zeros(47, np.uint8)), r"weight.absmax': expected U8 \[48\], got U8 \[47\]"),
        ("nested_absmax", ("F32", np.zeros(2, np.float32)), r"nested_absmax': expected F32 \[1\], got F32 \[2\]"),
        ("nested_quant_map", None, r"up_proj.weight': there is no '.*weight.nested_quant_map'"),
        ("quant_map", ("F32", np.zeros(16, np.float32)), r"quant_map': other levels than those of NormalFloat4"),
        (STATE, ("U8", np.frombuffer(b"[[[", np.uint8)), "nf4': expected a JSON object"),
        (STATE, ("U8", np.zeros(5000, np.uint8)), "nf4': 5000 bytes, at most 4096 are allowed"),
        (STATE, {"blocksize": 128}, "blocksize: 128 is not supported, expected 64"),
        (STATE, {"shape": [16, -1]}, r"shape: expected two positive integers, got \[16, -1\]"),
        (STATE, {"shape": [32, 96]}, r"shape: \[32, 96\], expected rows of whole blocks of 64"),
        (STATE, {"nested_blocksize": 0}, "nested_blocksize: expected a positive integer, got 0"),
        (STATE, {"nested_offset": float("nan")}, "nested_offset: expected a number of at most 65000 .*, got nan"),
        (STATE, {"nested_offset": 1e300}, r"nested_offset: expected a number of at most 65000 .*, got 1e\+300"),
        (STATE, {"nested_offset": 10**400}, "nested_offset: expected a number of at most 65000 .*, got 1000"),
    ],
)
def test_what_bitsandbytes_says_of_a_matrix_has_to_fit(
    tmp_path: Path, part: str, changed: object, message: str
) -> None:
    value = np.random.default_rng(0).standard_normal((16, 192)).astype(np.float32)
    files = {name: (dtype, shape, data) for name, dtype, shape, data in nf4(nested=True)(STEM, value)[0]}
    name = f"{STEM}.weight.{part}"
    if isinstance(changed, dict):
        content = json.dumps(json.loads(files[name][2]) | changed).encode()
        files[name] = ("U8", (len(content),), content)
    elif isinstance(changed, tuple):
        files[name] = (changed[0], changed[1].shape, changed[1].tobytes())
    else:
        del files[name]
    directory = write(tmp_path, files, config={"architectures": ["Test"], "quantization_config": NF4})
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.read(directory)


def act_order(folder: Path, groups: NDArray[np.int32], columns: int = 192) -> Checkpoint:
    """A checkpoint of one matrix whose columns are in these groups of 64."""
    value = np.random.default_rng(0).standard_normal((16, columns)).astype(np.float32)
    files = {name: (dtype, shape, data) for name, dtype, shape, data in gptq(4, 64)(STEM, value)[0]}
    files[f"{STEM}.g_idx"] = ("I32", groups.shape, groups.tobytes())
    quantization = {**GPTQ, "desc_act": True}
    return Checkpoint.read(
        write(folder, files, config={"architectures": ["Test"], "quantization_config": quantization})
    )


@pytest.mark.parametrize(
    ("column", "group", "error", "message"),
    [
        (5, -1, CheckpointError, "up_proj.g_idx': column 5 is in group -1, expected 0 to 2"),
        (5, 3, CheckpointError, "up_proj.g_idx': column 5 is in group 3, expected 0 to 2"),
        (5, 2**31 - 1, CheckpointError, "up_proj.g_idx': column 5 is in group 2147483647, expected 0 to 2"),
        (5, 1, UnsupportedModelError, "up_proj.g_idx': group 0 has 63 columns, expected 64"),
    ],
)
def test_groups_of_act_order_that_are_none_are_refused(
    tmp_path: Path, column: int, group: int, error: type[Exception], message: str
) -> None:
    groups = (np.arange(192) // 64).astype(np.int32)
    groups[column] = group
    with pytest.raises(error, match=message):
        act_order(tmp_path, groups)


def test_groups_of_act_order_that_lie_side_by_side_are_no_order(tmp_path: Path) -> None:
    groups = (np.arange(192) // 64).astype(np.int32)
    plain = act_order(tmp_path / "plain", groups).tensors[f"{STEM}.weight"]
    assert plain.packing is not None and plain.packing.order is None and not plain.packing.order_digest
    turned = act_order(tmp_path / "turned", groups[::-1].copy()).tensors[f"{STEM}.weight"]
    assert turned.packing is not None and turned.packing.order is not None
    assert turned.packing.order.name == f"{STEM}.g_idx" and turned.whole_bytes == plain.whole_bytes


def test_columns_in_an_order_are_refused_where_nothing_gathers_or_two_differ(tmp_path: Path) -> None:
    groups = (np.arange(192) // 64).astype(np.int32)
    first, second = (
        act_order(tmp_path / str(turn), np.roll(groups, turn)).tensors[f"{STEM}.weight"] for turn in (1, 2)
    )
    with pytest.raises(UnsupportedModelError, match=r"'.*up_proj.qweight': columns in the groups of '.*g_idx'"):
        check_order(first, is_gathered=False)
    check_order(first, is_gathered=True)
    check_orders([first, first])
    with pytest.raises(UnsupportedModelError, match="are used as one, and their columns are in different groups"):
        check_orders([first, second])
