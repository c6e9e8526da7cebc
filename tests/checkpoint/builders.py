"""Small checkpoints in Hugging Face's layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "I8": 1, "F8_E4M3": 1, "I32": 4, "U32": 4, "I64": 8}


def tensor(dtype: str, *shape: int, seed: int = 0) -> tuple[str, tuple[int, ...], bytes]:
    """Return a tensor of finite numbers: bit patterns without an all-ones exponent."""
    random = np.random.default_rng([seed, *shape])
    values = random.standard_normal(shape).astype(np.float32) * 3
    data = {
        "F32": values,
        "F16": values.astype(np.float16),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16),
    }.get(dtype)
    if data is None:
        data = random.integers(0, 255, (*shape, SIZES[dtype]), dtype=np.uint8)
    return dtype, shape, data.tobytes()


def values(dtype: str, data: bytes) -> NDArray[np.float32]:
    """Return the numbers that a tensor's bytes stand for."""
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, np.float32 if dtype == "F32" else np.float16).astype(np.float32)


def file_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """Return a safetensors file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return with_header(json.dumps(header).encode(), data)


def with_header(header: bytes, data: bytes = b"") -> bytes:
    """Return a file with this header, whatever it says."""
    return len(header).to_bytes(8, "little") + header + data


def write(
    directory: Path,
    *shards: Mapping[str, tuple[str, tuple[int, ...], bytes]],
    config: Mapping[str, object] | None = None,
) -> Path:
    """Write a model's directory: one shard as model.safetensors, several with an index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config or {"architectures": ["Test"]}))
    if len(shards) == 1:
        (directory / "model.safetensors").write_bytes(file_bytes(shards[0]))
        return directory
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        (directory / name).write_bytes(file_bytes(shard))
        weight_map |= dict.fromkeys(shard, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory
