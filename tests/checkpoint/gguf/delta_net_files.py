"""Tensors of layers of linear attention as the converter to GGUF leaves them: heads tiled, rates, norms plus one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.golden.checkpoints import Floats


def delta_net_tensor(config: Mapping[str, object], name: str, values: Floats) -> tuple[str, Floats]:
    """Return a directory's tensor under the name that the converter looks for, and changed as it does."""
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
