"""Strings and values of a GGUF file's metadata, as its header has them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np


def text(value: str) -> bytes:
    """A GGUF string."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> bytes:
    """A GGUF value with its type."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    number, data = {
        str: lambda: (8, b"".join(map(text, value))),
        float: lambda: (6, np.asarray(value, "<f4").tobytes()),
        int: lambda: (5, np.asarray(value, "<i4").tobytes()),
    }[type(value[0])]()
    return struct.pack("<IIQ", 9, number, len(value)) + data
