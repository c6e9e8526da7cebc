"""Codes and scales of gpt-oss's experts are one tensor, or refused by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from unicorn_async.checkpoint.mxfp4 import joined_planes
from unicorn_async.checkpoint.source_tensor import ScalePlane, SourceTensor
from unicorn_async.errors import CheckpointError

WHOLE = "model.layers.0.mlp.experts.down_proj"


def tensor(name: str, shape: tuple[int, ...], dtype: str = "U8", offset: int = 0) -> SourceTensor:
    return SourceTensor(name, dtype, shape, file=1, offset=offset, nbytes=96)


CODES, SCALES = tensor(f"{WHOLE}_blocks", (4, 6, 2, 16)), tensor(f"{WHOLE}_scales", (4, 6, 2), offset=768)


def joined(*tensors: SourceTensor) -> dict[str, SourceTensor]:
    return joined_planes({tensor.name: tensor for tensor in tensors}, Path("folder"))


def test_both_are_one_tensor_of_as_many_columns_as_codes() -> None:
    other = tensor("model.norm.weight", (64,), "BF16")
    found = joined(CODES, other, SCALES)
    assert set(found) == {WHOLE, "model.norm.weight"}
    assert (found[WHOLE].dtype, found[WHOLE].shape) == ("MXFP4", (4, 6, 64))
    assert found[WHOLE].scales == ScalePlane(file=1, offset=768, nbytes=96)
    assert found["model.norm.weight"] is other


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((CODES,), r"down_proj_blocks': there is no 'model.*down_proj_scales'"),
        ((CODES, SCALES, tensor(WHOLE, (4, 64, 6), "BF16")), "down_proj' is there as well"),
        ((tensor(CODES.name, (4, 6, 2, 17)), SCALES), r"expected U8 of blocks of 16 bytes, got U8 \[4, 6, 2, 17\]"),
        ((tensor(CODES.name, (4, 6, 2, 16), "I8"), SCALES), "got I8"),
        ((tensor(CODES.name, ()), SCALES), r"got U8 \[\]"),
        ((CODES, tensor(SCALES.name, (4, 2, 6))), r"down_proj_scales': expected U8 \[4, 6, 2\], got U8 \[4, 2, 6\]"),
        ((CODES, tensor(SCALES.name, (4, 6, 2), "BF16")), r"expected U8 \[4, 6, 2\], got BF16"),
    ],
)
def test_what_does_not_fit_is_refused(tensors: tuple[SourceTensor, ...], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        joined(*tensors)
