#!/usr/bin/env python3
"""Write a checkpoint with random weights in the layout and the shapes of a real model, for measurements.

    tools/make_checkpoint.py gemma3-27b DIRECTORY [--dtype BF16|F16|F32] [--layers N] [--vocab N] [--adapter RANK]

The values are drawn once for 64 MiB (normal, deviation 0.02) and repeated from there, so that writing runs at the speed
of the disk. The multimodal Gemma shapes have their vision tensors, which a text engine has to skip. With `--adapter` a
LoRA adapter of that rank for the four products of every attention comes to DIRECTORY/adapter.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

POOL_BYTES = 64 << 20
SHARD_BYTES = 5 << 30
DTYPES = {"BF16": 2, "F16": 2, "F32": 4}


@dataclass(frozen=True)
class Shape:
    """What the sizes of a model are."""

    architecture: str
    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    window: int = 0
    experts: int = 0  # of each layer; 0: a dense feed-forward network
    experts_used: int = 0  # by a token
    expert_ffn: int = 0

    @property
    def norms_heads(self) -> bool:
        """Whether queries and keys are normalised in each head."""
        return self.model_type.startswith(("gemma3", "qwen3"))


SHAPES = {
    "gemma3-27b": Shape("Gemma3ForConditionalGeneration", "gemma3", 5376, 62, 32, 16, 128, 21504, 262208, True, 1024),
    "gemma3-4b": Shape("Gemma3ForConditionalGeneration", "gemma3", 2560, 34, 8, 4, 256, 10240, 262208, True, 1024),
    "gemma3-1b": Shape("Gemma3ForCausalLM", "gemma3_text", 1152, 26, 4, 1, 256, 6912, 262144, True, 512),
    "llama-8b": Shape("LlamaForCausalLM", "llama", 4096, 32, 32, 8, 128, 14336, 128256, False),
    "llama-135m": Shape("LlamaForCausalLM", "llama", 576, 30, 9, 3, 64, 1536, 49152, True),
    "qwen3-0.6b": Shape("Qwen3ForCausalLM", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, True),
    "qwen3-30b-a3b": Shape(
        "Qwen3MoeForCausalLM", "qwen3_moe", 2048, 48, 32, 4, 128, 6144, 151936, False, 0, 128, 8, 768
    ),
}


def config(shape: Shape) -> dict[str, object]:
    """Return config.json."""
    text: dict[str, object] = {
        "model_type": shape.model_type,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": 2,
        "eos_token_id": 1,
    }
    if shape.window:
        scaling = {"factor": 8.0, "rope_type": "linear"}
        text |= {"sliding_window": shape.window, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
        text |= {"query_pre_attn_scalar": shape.hidden // shape.heads if shape.layers == 62 else 256}
        text |= {"rope_scaling": scaling, "hidden_activation": "gelu_pytorch_tanh", "sliding_window_pattern": 6}
    else:
        text |= {"hidden_act": "silu", "rope_theta": 5e5}
    if shape.experts:
        text |= {"num_experts": shape.experts, "num_experts_per_tok": shape.experts_used}
        text |= {"moe_intermediate_size": shape.expert_ffn, "norm_topk_prob": True}
    if shape.architecture == "Gemma3ForConditionalGeneration":
        vision = {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 2}
        return {
            "architectures": [shape.architecture],
            "model_type": "gemma3",
            "text_config": {**text, "model_type": "gemma3_text"},
            "vision_config": vision,
        }
    return {"architectures": [shape.architecture], **text}


def tensors(shape: Shape) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes, in the order of a released checkpoint."""
    prefix = "language_model." if shape.architecture == "Gemma3ForConditionalGeneration" else ""
    found: list[tuple[str, tuple[int, ...]]] = [
        (f"{prefix}model.embed_tokens.weight", (shape.vocab, shape.hidden)),
    ]
    gemma = bool(shape.window)
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma else []
    for layer in range(shape.layers):
        base = f"{prefix}model.layers.{layer}."
        found += [(f"{base}{norm}.weight", (shape.hidden,)) for norm in norms]
        if shape.norms_heads:
            found += [(f"{base}self_attn.{part}_norm.weight", (shape.head_dim,)) for part in "qk"]
        widths = {"q": shape.heads, "k": shape.kv_heads, "v": shape.kv_heads}
        found += [
            (f"{base}self_attn.{part}_proj.weight", (heads * shape.head_dim, shape.hidden))
            for part, heads in widths.items()
        ]
        found.append((f"{base}self_attn.o_proj.weight", (shape.hidden, shape.heads * shape.head_dim)))
        found += feed_forward(shape, f"{base}mlp.")
    found.append((f"{prefix}model.norm.weight", (shape.hidden,)))
    if not shape.tied:
        found.append(("lm_head.weight", (shape.vocab, shape.hidden)))
    if prefix:
        found.append(("multi_modal_projector.mm_input_projection_weight", (1152, shape.hidden)))
        for layer in range(2):
            base = f"vision_tower.vision_model.encoder.layers.{layer}."
            found += [(f"{base}self_attn.{part}_proj.weight", (1152, 1152)) for part in "qkv"]
    return found


def feed_forward(shape: Shape, base: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes of a layer's feed-forward network, or of its router and its experts."""
    found: list[tuple[str, tuple[int, ...]]] = []
    if shape.experts:
        found.append((f"{base}gate.weight", (shape.experts, shape.hidden)))
    ffn = shape.expert_ffn if shape.experts else shape.ffn
    for part in [f"{base}experts.{expert}." for expert in range(shape.experts)] or [base]:
        found += [(f"{part}{name}_proj.weight", (ffn, shape.hidden)) for name in ("gate", "up")]
        found.append((f"{part}down_proj.weight", (shape.hidden, ffn)))
    return found


def random_pool(dtype: str) -> bytes:
    """Return POOL_BYTES of random values."""
    values = np.random.default_rng(27).standard_normal(POOL_BYTES // DTYPES[dtype], np.float32) * np.float32(0.02)
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype(np.float16).tobytes()
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).tobytes()


def write_shard(path: Path, names: list[tuple[str, tuple[int, ...]]], dtype: str, pool: bytes) -> None:
    """Write one safetensors file."""
    header: dict[str, object] = {}
    offset = 0
    for name, shape in names:
        end = offset + int(np.prod(shape)) * DTYPES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        write_values(file, offset, pool)


def write_values(file: BinaryIO, nbytes: int, pool: bytes) -> None:
    """Write the pool again and again, each time from another start."""
    view, start = memoryview(pool), 0
    while nbytes:
        part = view[start : start + nbytes]
        nbytes -= file.write(part)
        start = (start + 6151 * 64) % (POOL_BYTES // 2)


def write_tokenizer(directory: Path, vocab: int) -> None:
    """Write a byte-level tokenizer with as many tokens as the model has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = {"<pad>": 0, "<eos>": 1, "<bos>": 2}
    table = special | {character: 3 + index for index, character in enumerate(characters)}
    table |= {f"<unused{index}>": index for index in range(len(table), vocab)}
    tokenizer = Tokenizer(models.BPE(vocab=table, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(directory / "tokenizer.json"))
    template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def write_adapter(directory: Path, shape: Shape, rank: int, pool: bytes) -> None:
    """Write an adapter in f32, as PEFT does."""
    directory.mkdir(exist_ok=True)
    names: list[tuple[str, tuple[int, ...]]] = []
    for name, dims in tensors(shape):
        if ".self_attn." in name and name.endswith("_proj.weight"):
            base = f"base_model.model.{name.removesuffix('.weight')}"
            names += [(f"{base}.lora_A.weight", (rank, dims[1])), (f"{base}.lora_B.weight", (dims[0], rank))]
    write_shard(directory / "adapter_model.safetensors", names, "F32", pool)
    modules = [f"{part}_proj" for part in "qkvo"]
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules}
    (directory / "adapter_config.json").write_text(json.dumps(settings))


def main() -> int:
    """Write the checkpoint that the command line asks for."""
    parser = argparse.ArgumentParser(description="Write a checkpoint with random weights in a real model's shapes.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dtype", choices=DTYPES, default="BF16")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--vocab", type=int, help="a smaller vocabulary than the model has")
    parser.add_argument("--adapter", type=int, metavar="RANK", help="a LoRA adapter of this rank, too")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    shape = Shape(**{**vars(shape), "layers": options.layers or shape.layers, "vocab": options.vocab or shape.vocab})
    options.directory.mkdir(parents=True, exist_ok=True)
    pool, shards, size = random_pool(options.dtype), [[]], 0  # type: ignore[var-annotated]
    for name, dims in tensors(shape):
        nbytes = int(np.prod(dims)) * DTYPES[options.dtype]
        if shards[-1] and size + nbytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((name, dims))
        size += nbytes
    files = [f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors" for index in range(len(shards))]
    for file, names in zip(files, shards, strict=True):
        write_shard(options.directory / file, names, options.dtype, pool)
        print(f"{file}: {len(names)} tensors", file=sys.stderr)
    weight_map = {name: file for file, names in zip(files, shards, strict=True) for name, _ in names}
    index = {"metadata": {}, "weight_map": weight_map}
    (options.directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (options.directory / "config.json").write_text(json.dumps(config(shape), indent=1))
    write_tokenizer(options.directory, shape.vocab)
    if options.adapter:
        write_adapter(options.directory / "adapter", shape, options.adapter, random_pool("F32"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
