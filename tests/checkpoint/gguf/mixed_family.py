"""Golden families as GGUF files in three parts whose matrices have many types, as dynamic mixes have them.

Their rows are widened to multiples of 256, which most types want.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING
from unittest import mock
from zlib import crc32

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, quants

from tests.golden.cases import CASES
from tests.ops.gguf_blocks import dequantize, num_scales, put_scales, random_blocks
from unicorn_async.checkpoint.gguf.ggml_types import GGML_TYPES
from unicorn_async.tensor import QuantFormat

from .builders import U32, Tensor, array, record, text, value
from .encoders import encoded
from .family_files import write_family

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

MIXED_FAMILIES = (
    *("qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "ernie4_5_moe", "glm4_moe", "gpt_oss", "gemma4", "gemma4_moe"),
    *("gemma4_small", "lfm2", "lfm2_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "rwkv7"),
    *("granite_hybrid_moe", "glm4_moe_lite", "mistral4"),
)
NUM_PARTS = 3
RANDOM_KINDS = ("Q2_K", "Q3_K", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")  # which nothing here encodes
KINDS = ("Q4_K", "Q6_K", "IQ3_S", "Q5_K", "Q8_0", "IQ2_XS", "IQ4_XS", "Q3_K", "Q5_0", "IQ3_XXS", "BF16", "Q2_K")
_WIDE: Mapping[str, object] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "num_attention_heads": 8,
    "hidden_size_per_layer_input": 256,
    "linear_value_head_dim": 64,
    "block_multiple_of": 256,
    "value_dim": [256] * 3,
}
_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_NUM_TAKEN = ("num_experts_per_tok", "top_k_experts", "moe_k")
_FEW_ROWS = 8  # of which a drawn matrix' deviation is known
_NUMBERS = {kind.name: number for number, kind in GGML_TYPES.items()}


def write_mixed(
    folder: Path, name: str, kinds: tuple[str, ...] = KINDS, *, dense: bool = False, takes_all: bool = False
) -> Path:
    """Write a family's file in three parts, of many types or with the same values in F32; return the first part.

    With `takes_all` each token takes all experts, so that rounding can't make it take another.
    """
    case = CASES[name]
    config = {**case.config, **{key: value for key, value in _WIDE.items() if case.config.get(key)}}
    if takes_all:
        counts = [config[key] for key in _NUM_EXPERTS if key in config]
        config |= {key: counts[0] for key in _NUM_TAKEN if key in config}
        config |= {"topk_group": config["n_group"]} if "n_group" in config else {}
    folder.mkdir()
    with mock.patch.dict(CASES, {name: replace(case, config=config)}):  # type: ignore[arg-type]
        source = write_family(folder / "source", name)
    tensors = dict(_tensors(source, kinds, dense))
    paths = _write_parts(folder, source.read_bytes(), tensors)
    source.unlink()
    return paths[0]


def _write_parts(folder: Path, source: bytes, tensors: Mapping[str, Tensor]) -> list[Path]:
    """Write tensors by turns into parts, the first of which has a file's keys; return where they are."""
    num_keys = int.from_bytes(source[16:24], "little")
    first = next(iter(tensors))
    keys, paths = source[24 : source.index(text(first))], []
    for part in range(NUM_PARTS):
        names = list(tensors)[part::NUM_PARTS]
        split = {"split.no": part, "split.count": NUM_PARTS, "split.tensors.count": len(tensors)}
        fields = b"".join(text(key) + value(U32(number)) for key, number in split.items())
        counts = len(names), len(split) + (num_keys if part == 0 else 0)
        header = b"GGUF" + (3).to_bytes(4, "little") + b"".join(count.to_bytes(8, "little") for count in counts)
        data, records = bytearray(), b""
        for name in names:
            records += record(name, tensors[name], len(data))
            data += tensors[name].data
            data += bytes(-len(data) % 32)
        header += (keys if part == 0 else b"") + fields + records
        path = folder / f"mixed-{part + 1:05}-of-{NUM_PARTS:05}.gguf"
        path.write_bytes(header + bytes(-len(header) % 32) + data)
        paths.append(path)
    return paths


def _tensors(source: Path, kinds: tuple[str, ...], dense: bool) -> Iterable[tuple[str, Tensor]]:
    """Yield a file's tensors, those in F16 of other types."""
    for tensor in GGUFReader(source).tensors:
        values = np.array(tensor.data)
        if tensor.tensor_type is not GGMLQuantizationType.F16 or values.shape[-1] % 256 or not values.any():
            kind = "F16" if tensor.tensor_type is GGMLQuantizationType.F16 else "F32"
            yield tensor.name, array(kind, values)
        else:
            yield tensor.name, _mixed(values.astype(np.float32), _kind_of(tensor.name, kinds), dense)


def _kind_of(name: str, kinds: tuple[str, ...]) -> str:
    """Choose by a tensor's role and layer; experts' gates have the type of what they are for."""
    layer = re.match(r"blk\.(\d+)\.", name)
    role = re.sub(r"^blk\.\d+\.", "", name).replace("ffn_up_exps", "ffn_gate_exps")
    return kinds[(crc32(role.encode()) + (int(layer[1]) if layer else 0)) % len(kinds)]


def _mixed(values: NDArray[np.float32], kind: str, dense: bool) -> Tensor:
    """Return values as a tensor of a type; what can't be encoded is drawn, and deviates as they do."""
    rows = values.reshape(-1, values.shape[-1])
    if kind in RANDOM_KINDS:
        quant_format = QuantFormat(kind)
        blocks = random_blocks(quant_format, *rows.shape, seed=len(rows))
        few = min(_FEW_ROWS, len(rows))
        some = blocks[: len(blocks) // len(rows) * few]
        for scale in (1.0, rows.std()):
            far = 1.0 if scale == 1.0 else dequantize(quant_format, some, few, rows.shape[1]).std()
            for number in range(num_scales(quant_format)):
                put_scales(quant_format, blocks, number, np.full(len(blocks), scale / far, np.float16))
        tensor = Tensor(_NUMBERS[kind], values.shape, blocks.tobytes())
    else:
        tensor = replace(encoded(kind, rows), shape=values.shape)
    return array("F32", _decoded(tensor, kind).reshape(values.shape)) if dense else tensor


def _decoded(tensor: Tensor, kind: str) -> NDArray[np.float32]:
    """Return what a tensor's bytes stand for, row by row."""
    raw = np.frombuffer(tensor.data, np.uint8).reshape(-1, len(tensor.data) // prod(tensor.shape[:-1]))
    return np.asarray(quants.dequantize(raw, GGMLQuantizationType[kind]))
