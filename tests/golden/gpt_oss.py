"""A golden gpt-oss: windows, sinks, biases of all kinds, gates that are clamped, and experts on MXFP4's grid.

Its experts' values are those of blocks, so that one reference serves dense files and those in MXFP4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from .case import PLAIN, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Named = tuple[str, Floats]
    File = tuple[str, str, tuple[int, ...], bytes]  # name, dtype, shape and bytes of a tensor

LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_LEVELS_DEVIATION = 2.93
_BLOCK = 32
_BIAS = 127  # of an exponent's byte

GPT_OSS = Case(
    "gpt_oss",
    {
        **PLAIN,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 96,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "attention_bias": True,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "swiglu_limit": 7.0,
        "rope_theta": 150_000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
    "gpt_oss",
    gains={"q_proj": 1.0, "k_proj": 1.0, "v_proj": 2.0, "o_proj": 0.8, "router": 1.0, "gate_up": 3.5, "down": 0.08},
)


def sinks(prefix: str, heads: int, draw: Callable[..., Floats]) -> Named:
    """Return the sinks of a layer's heads, as large as scores are."""
    name = f"{prefix}self_attn.sinks"
    return name, draw(f"gpt_oss/{name}", (heads,), 1.5, 2.0)


def gpt_oss_experts(case: Case, prefix: str, draw: Callable[..., Floats]) -> Iterator[Named]:
    """Yield a layer's router and experts as transformers has them: columns are an expert's outputs, gates by turns."""
    sizes = cast("Mapping[str, int]", case.config)
    hidden, width, count = (sizes[key] for key in ("hidden_size", "intermediate_size", "num_local_experts"))
    name = f"{prefix}mlp.router"
    yield f"{name}.weight", draw(f"gpt_oss/{name}", (count, hidden), case.gains["router"] / hidden**0.5)
    yield f"{name}.bias", draw(f"gpt_oss/{name}.bias", (count,), 0.5)
    for part, rows, columns, bias in (("gate_up", 2 * width, hidden, 2.0), ("down", hidden, width, 0.5)):
        name = f"{prefix}mlp.experts.{part}_proj"
        matrices = _on_grid(name, (count, rows, columns), case.gains[part] / columns**0.5, draw)
        yield name, np.ascontiguousarray(matrices.swapaxes(1, 2))
        yield f"{name}_bias", draw(f"gpt_oss/{name}_bias", (count, rows), bias)


def by_rows(tensors: Iterable[Named]) -> Iterator[Named]:
    """Yield tensors, those of experts with rows for outputs, gates and what they are for apart."""
    for name, value in tensors:
        if name.endswith("experts.gate_up_proj"):
            for part, first in (("gate", 0), ("up", 1)):
                yield f"{name.removesuffix('gate_up_proj')}{part}_proj", value[:, :, first::2].swapaxes(1, 2)
        elif name.endswith("experts.gate_up_proj_bias"):
            for part, first in (("gate", 0), ("up", 1)):
                yield f"{name.removesuffix('gate_up_proj_bias')}{part}_proj.bias", value[:, first::2]
        elif name.endswith("experts.down_proj"):
            yield name, value.swapaxes(1, 2)
        else:
            yield name.replace("down_proj_bias", "down_proj.bias"), value


def published(tensors: Iterable[Named], encode: Callable[[Floats], tuple[str, tuple[int, ...], bytes]]) -> list[File]:
    """Return a file's tensors, experts in blocks as the checkpoints of gpt-oss have them; `encode` makes the others."""
    files: list[File] = []
    for name, value in tensors:
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            files.append((name, *encode(value)))
            continue
        codes, exponents = blocks_of(value.swapaxes(1, 2))
        pairs = codes[..., ::2] | codes[..., 1::2] << 4
        files.append((f"{name}_blocks", "U8", pairs.shape, pairs.tobytes()))
        files.append((f"{name}_scales", "U8", exponents.shape, exponents.tobytes()))
    return files


def blocks_of(values: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return codes (…, blocks, 32) and exponents' bytes (…, blocks) of values that lie on the grid."""
    parts = values.reshape(*values.shape[:-1], -1, _BLOCK)
    largest = np.abs(parts).max(axis=-1)
    powers = np.floor(np.log2(np.where(largest > 0, largest, 1))).astype(np.int32) - 2
    scaled = np.ldexp(parts, -powers[..., None])
    codes = np.abs(scaled[..., None] - LEVELS).argmin(axis=-1).astype(np.uint8)
    assert (np.ldexp(LEVELS[codes], powers[..., None]) == parts).all()
    return codes, (powers + _BIAS).astype(np.uint8)


def _on_grid(name: str, shape: tuple[int, ...], deviation: float, draw: Callable[..., Floats]) -> Floats:
    """Draw values of MXFP4 whose blocks have one of three scales each."""
    power = round(np.log2(deviation / _LEVELS_DEVIATION))
    unit = draw(f"gpt_oss/{name}", shape, 1.0)  # uniform, up to the root of three
    codes = np.clip((unit / 3**0.5 + 1) * 8, 0, 15).astype(np.int32)
    scales = draw(f"gpt_oss/{name}/scales", (*shape[:-1], shape[-1] // _BLOCK), 1.0)
    powers = power + np.clip(np.floor((scales / 3**0.5 + 1) * 1.5), 0, 2).astype(np.int32) - 1
    return np.ldexp(LEVELS[codes], np.repeat(powers, _BLOCK, axis=-1))
