"""Deterministic checkpoints of the golden cases, and the reference logits that belong to them.

A weight is drawn from its case's and its tensor's name alone, by a raw counter-based generator, so every machine and
every version of numpy draws the same. Values lie on bfloat16's grid and in float16's normal range: one set of reference
logits serves float32, float16 and bfloat16 checkpoints.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Philox

from .cases import CASES, Case, Layout
from .delta_nets import delta_net_tensors
from .gemma4 import GEMMA4_VISION, gemma4_tensors
from .gpt_oss import gpt_oss_experts, published, sinks
from .granite_hybrids import granite_hybrid_tensors
from .latents import latent_tensors
from .mixtures import expert_tensors, has_experts
from .rwkv7 import rwkv7_tensors
from .short_convs import lfm2_tensors
from .vision_language import VISION_SHAPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_FOLDER = Path(__file__).resolve().parent
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_F16_SMALLEST_NORMAL = 2.0**-14


@dataclass(frozen=True, slots=True)
class Golden:
    """What transformers computed in float32 for one case."""

    prompts: tuple[tuple[int, ...], ...]  # of 1, 7, 64 and 300 tokens
    vocabulary: NDArray[np.int64]  # (n): the token ids whose logits are kept
    logits: tuple[Floats, ...]  # per prompt (tokens, n)
    deviation: float  # standard deviation of all logits
    sensitivity: Mapping[str, float]  # a mistake → the largest change of a logit that it causes, in deviations

    def error(self, prompt: int, logits: Floats) -> float:
        """Return the largest error of one prompt's logits (tokens, vocabulary), in deviations; NaN stays NaN."""
        difference = np.abs(logits[:, self.vocabulary].astype(np.float64) - self.logits[prompt])
        return float(difference.max() / self.deviation)


def golden(name: str) -> Golden:
    """Load the reference of one case."""
    return read_golden(CASES[name].reference)


def read_golden(file_name: str) -> Golden:
    """Load the reference in one of this folder's files."""
    with np.load(_FOLDER / f"{file_name}.npz") as file:
        lengths = file["lengths"]
        ends = np.cumsum(lengths)[:-1]
        return Golden(
            prompts=tuple(tuple(int(token) for token in part) for part in np.split(file["tokens"], ends)),
            vocabulary=file["vocabulary"],
            logits=tuple(np.split(file["logits"], ends)),
            deviation=float(file["deviation"]),
            sensitivity=json.loads(str(file["sensitivity"])),
        )


def write_checkpoint(name: str, directory: Path, dtype: str = "bfloat16", *, num_shards: int = 1) -> Path:
    """Write one case as a Hugging Face directory (config.json and safetensors, with an index if sharded); return it.

    gpt-oss's experts are in blocks of MXFP4, but for float32, in which transformers reads them dense.
    """
    case = CASES[name]
    directory.mkdir(parents=True, exist_ok=True)
    config = {**case.config, "torch_dtype": dtype}
    if has_blocks := config["model_type"] == "gpt_oss" and dtype != "float32":
        config["quantization_config"] = {"quant_method": "mxfp4"}
    (directory / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    if has_blocks:
        tensors = published(weights(case), lambda value: encode(value, dtype))
    else:
        tensors = [(key, *encode(value, dtype)) for key, value in weights(case)]
    if num_shards == 1:
        (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
        return directory
    places: dict[str, str] = {}
    for shard in range(num_shards):
        part = tensors[shard::num_shards]
        file_name = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        (directory / file_name).write_bytes(safetensors_bytes(part))
        places.update({key: file_name for key, *_ in part})
    index = {"metadata": {"total_size": sum(len(data) for *_, data in tensors)}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    return directory


def weights(case: Case) -> Iterator[tuple[str, Floats]]:
    """Yield every tensor of a case's checkpoint under the name that its layout gives it."""
    text_prefix = "language_model." if case.layout is Layout.MULTIMODAL_OLD else ""
    for name, value in _text_tensors(case):
        if case.layout is Layout.MULTIMODAL_NEW:
            name = name.replace("model.", "model.language_model.", 1)
        yield text_prefix + name, value
    if case.layout is not Layout.TEXT:
        prefix = "model." if case.layout is Layout.MULTIMODAL_NEW else ""
        for name, shape in _VISION_SHAPES[str(case.config["model_type"])].items():
            yield prefix + name, draw(f"vision/{name}", shape, 0.02)


def _text_tensors(case: Case) -> Iterator[tuple[str, Floats]]:
    kind = case.text_config["model_type"]
    if kind in ("lfm2", "lfm2_moe", "lfm3"):
        return lfm2_tensors(case, draw)
    if kind == "granitemoehybrid":
        return granite_hybrid_tensors(case, draw)
    if kind == "rwkv7":
        return rwkv7_tensors(case, draw)
    if kind == "gemma4_text":
        return gemma4_tensors(case, draw)
    if "kv_lora_rank" in case.text_config:
        return latent_tensors(case, draw)
    return delta_net_tensors(case, draw) if "linear_num_key_heads" in case.text_config else _decoder(case)


def _decoder(case: Case) -> Iterator[tuple[str, Floats]]:
    config = case.text_config
    kind = str(config["model_type"])
    hidden, vocab, ffn = (_int(config, key) for key in ("hidden_size", "vocab_size", "intermediate_size"))
    heads, kv_heads = _int(config, "num_attention_heads"), _int(config, "num_key_value_heads")
    head_dim = _int(config, "head_dim") if "head_dim" in config else hidden // heads
    gemma = kind.startswith("gemma")
    tied = bool(config.get("tie_word_embeddings", case.config.get("tie_word_embeddings", gemma)))

    def matrix(name: str, rows: int, columns: int) -> tuple[str, Floats]:
        gain = case.gains.get(name.rsplit(".", 1)[-1], 1.0)
        return f"{name}.weight", draw(f"{case.reference}/{name}", (rows, columns), gain / columns**0.5)

    def norm(name: str, size: int) -> tuple[str, Floats]:
        factor = case.norm_gains.get(name.rsplit(".", 1)[-1], 1.0)
        offset = factor - 1.0 if gemma else factor
        return f"{name}.weight", draw(f"{case.reference}/{name}", (size,), 0.2 * factor, offset)

    before, between, after = _norm_names(kind)
    embedding_deviation = hidden**-0.5 if tied else 1.0
    yield "model.embed_tokens.weight", draw(f"{case.reference}/embed", (vocab, hidden), embedding_deviation)
    for layer in range(_int(config, "num_hidden_layers")):
        prefix = f"model.layers.{layer}."
        for part in before:
            yield norm(prefix + part, hidden)
        if kind == "phi3":
            yield matrix(f"{prefix}self_attn.qkv_proj", (heads + 2 * kv_heads) * head_dim, hidden)
        else:
            for part, size in (("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)):
                name = f"{prefix}self_attn.{part}"
                yield matrix(name, size * head_dim, hidden)
                if kind.startswith("qwen2") or config.get("attention_bias"):
                    yield f"{name}.bias", draw(f"{case.reference}/{name}.bias", (size * head_dim,), 0.5)
        yield matrix(f"{prefix}self_attn.o_proj", hidden, heads * head_dim)
        if config.get("attention_bias") and kind not in ("glm", "glm4", "glm4_moe", "seed_oss"):
            yield f"{prefix}self_attn.o_proj.bias", draw(f"{case.reference}/{prefix}o_proj.bias", (hidden,), 0.5)
        if kind in ("gemma3_text", "exaone4", "glm4_moe") or kind.startswith("qwen3"):
            yield norm(f"{prefix}self_attn.q_norm", head_dim)
            yield norm(f"{prefix}self_attn.k_norm", head_dim)
        if kind in ("olmo2", "olmo3", "olmoe"):
            yield norm(f"{prefix}self_attn.q_norm", heads * head_dim)
            yield norm(f"{prefix}self_attn.k_norm", kv_heads * head_dim)
        for part in (*between, *after):
            yield norm(prefix + part, hidden)
        if kind == "gpt_oss":
            yield sinks(prefix, heads, draw)
            yield from gpt_oss_experts(case, prefix, draw)
            continue
        if has_experts(config, layer):
            yield from expert_tensors(config, prefix, matrix)
            if kind == "ernie4_5_moe":
                name = f"{prefix}mlp.moe_statics.e_score_correction_bias"
                yield name, draw(f"{case.reference}/{name}", (1, _int(config, "moe_num_experts")), 0.05)
            if kind == "glm4_moe":
                name = f"{prefix}mlp.gate.e_score_correction_bias"
                yield name, draw(f"{case.reference}/{name}", (_int(config, "n_routed_experts"),), 0.15)
            continue
        if kind in ("phi3", "glm", "glm4"):
            yield matrix(f"{prefix}mlp.gate_up_proj", 2 * ffn, hidden)
        else:
            yield matrix(f"{prefix}mlp.gate_proj", ffn, hidden)
            yield matrix(f"{prefix}mlp.up_proj", ffn, hidden)
        yield matrix(f"{prefix}mlp.down_proj", hidden, ffn)
    yield norm("model.norm", hidden)
    if not tied:
        yield matrix("lm_head", vocab, hidden)


def _norm_names(kind: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Norms of a layer before its attention, between attention and FFN, and about the FFN."""
    if kind.startswith("gemma"):
        names = ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
        return ("input_layernorm",), names[:1], names[1:]
    if kind in ("olmo2", "olmo3", "exaone4"):
        return (), ("post_attention_layernorm",), ("post_feedforward_layernorm",)
    if kind == "cohere2":
        return ("input_layernorm",), (), ()
    if kind == "glm4":
        return ("input_layernorm",), ("post_self_attn_layernorm", "post_attention_layernorm"), ("post_mlp_layernorm",)
    return ("input_layernorm",), ("post_attention_layernorm",), ()


_LAYER = "vision_tower.vision_model.encoder.layers.0"
_SIGLIP: Mapping[str, tuple[int, ...]] = {
    "vision_tower.vision_model.embeddings.patch_embedding.weight": (32, 3, 14, 14),
    "vision_tower.vision_model.embeddings.patch_embedding.bias": (32,),
    "vision_tower.vision_model.embeddings.position_embedding.weight": (4, 32),
    **{f"{_LAYER}.self_attn.{part}.weight": (32, 32) for part in ("q_proj", "k_proj", "v_proj", "out_proj")},
    **{f"{_LAYER}.self_attn.{part}.bias": (32,) for part in ("q_proj", "k_proj", "v_proj", "out_proj")},
    **{f"{_LAYER}.layer_norm{n}.{part}": (32,) for n in (1, 2) for part in ("weight", "bias")},
    f"{_LAYER}.mlp.fc1.weight": (48, 32),
    f"{_LAYER}.mlp.fc1.bias": (48,),
    f"{_LAYER}.mlp.fc2.weight": (32, 48),
    f"{_LAYER}.mlp.fc2.bias": (32,),
    "vision_tower.vision_model.post_layernorm.weight": (32,),
    "vision_tower.vision_model.post_layernorm.bias": (32,),
    "multi_modal_projector.mm_input_projection_weight": (32, 96),
    "multi_modal_projector.mm_soft_emb_norm.weight": (32,),
}
_PIXTRAL_LAYER = "vision_tower.transformer.layers.0"
_PIXTRAL: Mapping[str, tuple[int, ...]] = {
    "vision_tower.patch_conv.weight": (32, 3, 14, 14),
    "vision_tower.ln_pre.weight": (32,),
    **{f"{_PIXTRAL_LAYER}.attention.{part}_proj.weight": (32, 32) for part in "qkvo"},
    **{f"{_PIXTRAL_LAYER}.{part}_norm.weight": (32,) for part in ("attention", "ffn")},
    f"{_PIXTRAL_LAYER}.feed_forward.gate_proj.weight": (48, 32),
    f"{_PIXTRAL_LAYER}.feed_forward.up_proj.weight": (48, 32),
    f"{_PIXTRAL_LAYER}.feed_forward.down_proj.weight": (32, 48),
    "multi_modal_projector.norm.weight": (32,),
    "multi_modal_projector.patch_merger.merging_layer.weight": (32, 128),
    "multi_modal_projector.linear_1.weight": (96, 32),
    "multi_modal_projector.linear_2.weight": (96, 96),
}
_VISION_SHAPES = {"gemma3": _SIGLIP, "gemma4": GEMMA4_VISION, "mistral3": _PIXTRAL, **VISION_SHAPES}


def _int(config: Mapping[str, object], key: str) -> int:
    value = config[key]
    assert isinstance(value, int)
    return value


def draw(key: str, shape: tuple[int, ...], deviation: float, mean: float = 0.0) -> Floats:
    """Draw uniform values with a mean and a standard deviation, then round them to bfloat16."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little")
    raw = Philox(key=seed).random_raw(int(np.prod(shape)))
    unit = (raw >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0
    values = (unit * (deviation * 3.0**0.5) + mean).astype(np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    grid = rounded.view(np.float32)
    return np.where(np.abs(grid) < _F16_SMALLEST_NORMAL, np.float32(0), grid).reshape(shape)


def encode(value: Floats, dtype: str) -> tuple[str, tuple[int, ...], bytes]:
    """Return a tensor of a file: its type, its shape and its bytes."""
    if dtype == "bfloat16":
        data = (value.view(np.uint32) >> np.uint32(16)).astype(np.uint16).tobytes()
    else:
        data = value.astype(dtype).tobytes()
    return _DTYPES[dtype], value.shape, data


def safetensors_bytes(tensors: list[tuple[str, str, tuple[int, ...], bytes]]) -> bytes:
    """Return a file of tensors, each with its name, type, shape and bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data for *_, data in tensors)
