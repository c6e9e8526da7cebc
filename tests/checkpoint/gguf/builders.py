"""Writes small GGUF files, sound ones and others."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

TYPE_NUMBERS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}


@dataclass(frozen=True)
class U32:
    """An unsigned integer of 32 bits, which is what most counts of real files are."""

    number: int


@dataclass(frozen=True)
class Tensor:
    """A tensor as a file has it; `shape` is row-major. `offset` None lets the writer choose."""

    kind: str | int
    shape: tuple[int, ...]
    data: bytes
    offset: int | None = None


@dataclass
class File:
    """A GGUF file to be."""

    metadata: Mapping[str, object] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    version: int = 3
    alignment: int = 32

    def encode(self) -> bytes:
        """Return the file's bytes."""
        extra = {} if self.alignment == 32 else {"general.alignment": U32(self.alignment)}
        metadata = {**self.metadata, **extra}
        header = b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(metadata))
        header += b"".join(text(key) + value(item) for key, item in metadata.items())
        data = bytearray()
        for name, tensor in self.tensors.items():
            header += record(name, tensor, len(data))
            data += tensor.data
            data += b"\0" * (-len(data) % self.alignment)
        return header + b"\0" * (-len(header) % self.alignment) + bytes(data)


def array(kind: str, values: NDArray[np.float32]) -> Tensor:
    """Return a tensor of numbers; bfloat16 by cutting bits off."""
    if kind == "BF16":
        data = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    else:
        data = values.astype({"F32": np.float32, "F16": np.float16}[kind]).tobytes()
    return Tensor(kind, values.shape, data)


def write(path: Path, metadata: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Path:
    """Write one file."""
    path.write_bytes(File(metadata, tensors).encode())
    return path


def write_parts(
    folder: Path, stem: str, metadata: Mapping[str, object], parts: Sequence[Mapping[str, Tensor]]
) -> list[Path]:
    """Write a model in several files, with the metadata in the first."""
    total = sum(map(len, parts))
    paths = []
    for index, tensors in enumerate(parts):
        split = {"split.no": U32(index), "split.count": U32(len(parts)), "split.tensors.count": U32(total)}
        path = folder / f"{stem}-{index + 1:05}-of-{len(parts):05}.gguf"
        paths.append(write(path, {**(metadata if index == 0 else {}), **split}, tensors))
    return paths


def record(name: str, tensor: Tensor, offset: int) -> bytes:
    """Return a tensor's record."""
    number = TYPE_NUMBERS[tensor.kind] if isinstance(tensor.kind, str) else tensor.kind
    dims = struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
    offset = offset if tensor.offset is None else tensor.offset
    return text(name) + struct.pack("<I", len(tensor.shape)) + dims + struct.pack("<IQ", number, offset)


def text(string: str) -> bytes:
    """Return a string with its length."""
    data = string.encode()
    return struct.pack("<Q", len(data)) + data


def value(item: object) -> bytes:
    """Return a value with its type; integers are of 64 bits, real numbers and arrays of 32."""
    match item:
        case bool():
            return struct.pack("<I?", 7, item)
        case U32(number):
            return struct.pack("<II", 4, number)
        case int():
            return struct.pack("<Iq", 11, item)
        case float():
            return struct.pack("<If", 6, item)
        case str():
            return struct.pack("<I", 8) + text(item)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(text, item))
        case [bool(), *_]:
            return struct.pack(f"<IIQ{len(item)}?", 9, 7, len(item), *item)
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(item)}f", 9, 6, len(item), *item)
        case list():
            return struct.pack(f"<IIQ{len(item)}i", 9, 5, len(item), *item)
    raise TypeError(type(item))
