"""A small mixture of experts whose matrices have as many types as in files of dynamic mixes, random numbers and blocks.

All tokens take all experts, so that rounding can't make one take another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.ops.gguf_blocks import dequantize, num_scales, put_scales, random_blocks
from unicorn_async.checkpoint.gguf.ggml_types import GGML_TYPES
from unicorn_async.tensor import QuantFormat

from .builders import U32, Tensor, array, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HIDDEN, VOCAB, LAYERS, EXPERTS = 256, 300, 1, 2
TABLES = {"token_embd": "IQ3_S", "output": "Q2_K"}
MATRICES = {"attn_q": "IQ2_XS", "attn_k": "Q3_K", "attn_v": "F32", "attn_output": "Q2_K"}
STACKS = {"ffn_gate_exps": "IQ2_XXS", "ffn_up_exps": "IQ2_XXS", "ffn_down_exps": "IQ2_S"}
_NUMBERS = {kind.name: number for number, kind in GGML_TYPES.items()}
_SIZES = {
    "embedding_length": HIDDEN,
    "block_count": LAYERS,
    "feed_forward_length": HIDDEN,
    "attention.head_count": 4,
    "attention.head_count_kv": 4,
    "attention.key_length": 64,
    "attention.value_length": 64,
    "context_length": 512,
    "expert_count": EXPERTS,
    "expert_used_count": EXPERTS,
    "expert_feed_forward_length": HIDDEN,
}


def write_mix(path: Path, *, dense: bool = False) -> Path:
    """Write the file, or one whose matrices have the same values in F32."""
    numbers = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e4}
    keys = {f"qwen3moe.{key}": value for key, value in ({k: U32(v) for k, v in _SIZES.items()} | numbers).items()}
    return write(path, {"general.architecture": "qwen3moe"} | keys, dict(_tensors(dense)))


def _tensors(dense: bool) -> Iterator[tuple[str, Tensor]]:
    rng = np.random.default_rng(7)
    yield "output_norm.weight", array("F32", np.ones(HIDDEN, np.float32))
    for name, kind in TABLES.items():
        yield f"{name}.weight", _matrix(kind, (VOCAB, HIDDEN), len(name), dense)
    for layer in range(LAYERS):
        for name, size in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn_q_norm", 64), ("attn_k_norm", 64)):
            yield f"blk.{layer}.{name}.weight", array("F32", np.ones(size, np.float32))
        router = rng.standard_normal((EXPERTS, HIDDEN)).astype(np.float32) / 8
        yield f"blk.{layer}.ffn_gate_inp.weight", array("F32", router)
        for shape, kinds in (((HIDDEN, HIDDEN), MATRICES), ((EXPERTS, HIDDEN, HIDDEN), STACKS)):
            for seed, (name, kind) in enumerate(kinds.items()):
                yield f"blk.{layer}.{name}.weight", _matrix(kind, shape, 10 * layer + seed, dense)


def _matrix(kind: str, shape: tuple[int, ...], seed: int, dense: bool) -> Tensor:
    """Blocks of any bits with one scale for all, such that values deviate by a sixteenth."""
    if kind == "F32":
        return array("F32", np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 16)
    quant_format, rows = QuantFormat(kind), int(np.prod(shape[:-1]))
    blocks = random_blocks(quant_format, rows, shape[-1], seed)
    for scale in (1.0, 1 / 16):
        deviation = 1.0 if scale == 1 else dequantize(quant_format, blocks, rows, shape[-1]).std()
        for number in range(num_scales(quant_format)):
            put_scales(quant_format, blocks, number, np.full(len(blocks), scale / deviation, np.float16))
    if dense:
        return array("F32", dequantize(quant_format, blocks, rows, shape[-1]).reshape(shape))
    return Tensor(_NUMBERS[kind], shape, blocks.tobytes())
