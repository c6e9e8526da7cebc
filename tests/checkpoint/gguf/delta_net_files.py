"""Tensors of layers of linear attention as the converter to GGUF leaves them: heads tiled, rates, norms plus one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.golden.checkpoints import Floats

    Named = tuple[str, Floats]


def delta_net_tensors(
    config: Mapping[str, object], tensors: Iterable[Named], *, joins_gates: bool = False
) -> Iterator[Named]:
    """Yield a directory's tensors under the names that the converter looks for, and changed as it does.

    With `joins_gates` as the first one did, which left Qwen3-Next's projection as it is.
    """
    for name, values in tensors:
        if name.endswith("in_proj_qkvz.weight") and not joins_gates:
            qkv, gate = ungrouped(cast("Mapping[str, int]", config), values)
            yield name.replace("qkvz", "qkv"), qkv
            yield name.replace("qkvz", "z"), gate
        elif config["model_type"] == "qwen3_next":
            yield of_qwen3_next(name, values)
        else:
            yield delta_net_tensor(config, name, values)


def of_qwen3_next(name: str, values: Floats) -> Named:
    """Return a tensor of a model whose heads of values stay where they are."""
    if name.endswith("A_log"):
        return name, -np.exp(values)
    if "norm" in name and "linear_attn" not in name:
        return name, values + np.float32(1)
    values = values[:, 0] if name.endswith("conv1d.weight") else values
    return name.replace("dt_bias", "dt_proj.bias"), values


def ungrouped(sizes: Mapping[str, int], values: Floats) -> tuple[Floats, Floats]:
    """Return what makes q, k and v, and what makes the gate, of rows that lie by heads of keys."""
    heads, key_dim = sizes["linear_num_key_heads"], sizes["linear_key_head_dim"]
    by_head = values.reshape(heads, -1, values.shape[1])
    value_rows = (by_head.shape[1] - 2 * key_dim) // 2
    ends = (key_dim, 2 * key_dim, 2 * key_dim + value_rows)
    *qkv, gate = (part.reshape(-1, values.shape[1]) for part in np.split(by_head, ends, axis=1))
    return np.concatenate(qkv), gate


def delta_net_tensor(config: Mapping[str, object], name: str, values: Floats) -> Named:
    """Return a tensor of a model whose heads of values the converter puts in turns."""
    sizes = cast("Mapping[str, int]", config)
    part, value_dim = name.removesuffix(".weight").rpartition(".")[2], sizes["linear_value_head_dim"]
    keys = 2 * sizes["linear_num_key_heads"] * sizes["linear_key_head_dim"]
    if "linear_attn" not in name:
        return name, values + np.float32(1) if "norm" in part else values
    if part in ("in_proj_qkv", "conv1d"):
        values = values.reshape(len(values), -1)
        return name, np.concatenate([values[:keys], tiled(sizes, values[keys:], value_dim)])
    if part == "in_proj_z":
        return name, tiled(sizes, values, value_dim)
    if part == "out_proj":
        return name, np.ascontiguousarray(tiled(sizes, values.T, value_dim).T)
    if part == "A_log":
        return name, -np.exp(tiled(sizes, values, 1))
    if part == "norm":
        return name, values
    return name.replace("dt_bias", "dt_proj.bias"), tiled(sizes, values, 1)


def tiled(sizes: Mapping[str, int], values: Floats, rows: int) -> Floats:
    """Put heads of so many rows each, of which neighbours share a head of keys, in turns of these heads."""
    key_heads = sizes["linear_num_key_heads"]
    by_head = values.reshape(key_heads, -1, rows, *values.shape[1:])
    return np.ascontiguousarray(by_head.swapaxes(0, 1)).reshape(values.shape)
