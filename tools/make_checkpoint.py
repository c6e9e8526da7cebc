#!/usr/bin/env python3
"""Write a checkpoint with random weights in the layout and the shapes of a real model, for measurements.

    tools/make_checkpoint.py gemma3-27b DIRECTORY [--dtype BF16|F16|F32] [--layers N] [--vocab N] [--adapter RANK]

The values are drawn once for 64 MiB (normal, deviation 0.02) and repeated from there, so that writing runs at the speed
of the disk; of layers that keep a state, those that are no matrices lie where trained models have them.

Nothing in it is trained: the answers mean nothing, and neither do measurements of quality, of how often proposed tokens
are right, or of which experts tokens choose. The multimodal Gemma shapes have their vision tensors, which a text engine
has to skip. With `--adapter` a LoRA adapter of that rank for the four products of every attention comes to
DIRECTORY/adapter.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from checkpoint_tensors import config, tensors, value_range
from model_shapes import SHAPES
from whole_files import MOST_LAYERS, MOST_ROWS, at_least_one, whole_file

if TYPE_CHECKING:
    from checkpoint_tensors import Named
    from model_shapes import Shape

POOL_BYTES = 64 << 20
SHARD_BYTES = 5 << 30
DTYPES = {"BF16": 2, "F16": 2, "F32": 4}
SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>")
BOUNDS = {"layers": (1, MOST_LAYERS), "vocab": (len(SPECIAL_TOKENS) + 256, MOST_ROWS), "adapter": (1, MOST_ROWS)}


def encoded(values: np.ndarray, dtype: str) -> bytes:
    """Return f32 values in a type; those in BF16 are cut off."""
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype(np.float16).tobytes()
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).tobytes()


def random_pool(dtype: str) -> bytes:
    """Return POOL_BYTES of random values."""
    values = np.random.default_rng(27).standard_normal(POOL_BYTES // DTYPES[dtype], np.float32)
    return encoded(values * np.float32(0.02), dtype)


def write_shard(path: Path, names: list[Named], dtype: str, pool: bytes) -> None:
    """Write one safetensors file; raises SystemExit as `whole_file` does."""
    header: dict[str, object] = {}
    offset = 0
    for name, shape in names:
        end = offset + int(np.prod(shape)) * DTYPES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng, start = np.random.default_rng(27), 0
    with whole_file(path, 8 + len(text) + offset) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in names:
            bounds = value_range(name)
            if bounds is None:
                start = write_values(file, int(np.prod(shape)) * DTYPES[dtype], pool, start)
            else:
                file.write(encoded(rng.uniform(*bounds, shape).astype(np.float32), dtype))


def write_values(file: BinaryIO, nbytes: int, pool: bytes, start: int) -> int:
    """Write the pool from a place on, again and again, each time from another start; returns the next one."""
    view = memoryview(pool)
    while nbytes:
        nbytes -= file.write(view[start : start + nbytes])
        start = (start + 6151 * 64) % (POOL_BYTES // 2)
    return start


def write_tokenizer(directory: Path, vocab: int) -> None:
    """Write a byte-level tokenizer with as many tokens as the model has, which are those of BOUNDS at least."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    table = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *characters))}
    table |= {f"<unused{index}>": index for index in range(len(table), vocab)}
    tokenizer = Tokenizer(models.BPE(vocab=table, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(directory / "tokenizer.json"))
    template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def write_adapter(directory: Path, shape: Shape, rank: int, pool: bytes) -> None:
    """Write an adapter in f32, as PEFT does."""
    directory.mkdir(exist_ok=True)
    names: list[Named] = []
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
    parser.add_argument("--layers", help="fewer layers than the model has")
    parser.add_argument("--vocab", help="another size of the vocabulary, which has all bytes")
    parser.add_argument("--adapter", metavar="RANK", help="a LoRA adapter of this rank, too")
    options = parser.parse_args()
    try:
        given = {
            name: at_least_one(f"--{name}", text, most, least=least)
            for name, (least, most) in BOUNDS.items()
            if (text := getattr(options, name)) is not None
        }
    except ValueError as exc:
        parser.error(str(exc))
    rank, shape = given.pop("adapter", 0), replace(SHAPES[options.shape], **given)
    try:
        options.directory.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise SystemExit(f"{options.directory}: {exc.strerror}") from exc
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
    if rank:
        write_adapter(options.directory / "adapter", shape, rank, random_pool("F32"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
