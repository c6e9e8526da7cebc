"""Tensors that have rows of each layer one after the other, taken apart into a tensor for each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.checkpoint.source_tensor import SourceTensor

_STEMS = {"model.per_layer_model_projection.weight": "per_layer_model_projection.weight"}


def take_layers_apart(tensors: dict[str, SourceTensor], num_layers: object) -> dict[str, SourceTensor]:
    """Return the tensors with a part for each layer, by the models' names, in place of one that has rows of all.

    What does not fall into so many parts stays as it is.
    """
    found = dict(tensors)
    for name, part in _STEMS.items():
        source = tensors.get(name)
        if source is None or not isinstance(num_layers, int) or isinstance(num_layers, bool) or num_layers < 1:
            continue
        rows, *others = source.shape
        if rows % num_layers or num_layers > rows:
            continue
        nbytes = source.nbytes // num_layers
        del found[name]
        for layer in range(num_layers):
            shape, offset = (rows // num_layers, *others), source.offset + nbytes * layer
            found[f"model.layers.{layer}.{part}"] = replace(source, shape=shape, offset=offset, nbytes=nbytes)
    return found
