"""Tensors of all layers are taken apart where their rows fall into as many parts."""

from __future__ import annotations

import pytest

from unicorn_async.checkpoint.layer_parts import take_layers_apart
from unicorn_async.checkpoint.source_tensor import SourceTensor

NAME = "model.per_layer_model_projection.weight"
OTHER = SourceTensor("model.norm.weight", "BF16", (8,), 0, 0, 16)


def whole(rows: int) -> SourceTensor:
    return SourceTensor(NAME, "BF16", (rows, 8), 1, 64, rows * 16)


def test_each_layer_gets_its_rows() -> None:
    found = take_layers_apart({NAME: whole(12), OTHER.name: OTHER}, 3)
    assert found.pop(OTHER.name) is OTHER
    for layer in range(3):
        part = found.pop(f"model.layers.{layer}.per_layer_model_projection.weight")
        assert (part.shape, part.offset, part.nbytes, part.file) == ((4, 8), 64 + 64 * layer, 64, 1)
    assert not found


@pytest.mark.parametrize("num_layers", [5, 24, 0, -3, True, None, "3", 1 << 40])
def test_what_does_not_fall_into_parts_stays(num_layers: object) -> None:
    tensors = {NAME: whole(12)}
    assert take_layers_apart(tensors, num_layers) == tensors
