"""Damage to sound inputs: bytes that change, and JSON values that nobody expects."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

_NUMBERS = (0, 1, 2, 3, 7, 8, 31, 32, 127, 128, 255, 256, 4095, 65535, 1 << 20, 1 << 24, 1 << 28)
_LARGE = (*((1 << bits) + step for bits in (31, 32, 53, 62, 63, 64) for step in (-1, 0)), -1)
_VALUES: tuple[Any, ...] = (
    *_NUMBERS,
    *_LARGE,
    -7,
    10**400,
    0.0,
    -0.0,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    True,
    False,
    None,
    "",
    "x",
    "\ud800",
    "\0",
    "../../etc/passwd",
    "a" * 300,
    [],
    {},
    [[]],
    [None],
    {"": ""},
    [0, 1 << 63],
    ["x"] * 50,
    {"content": {"content": 1}},
)


def mutated(seed: bytes, rng: Random) -> bytes:
    """Return a damaged copy; text that is JSON keeps its form half of the time."""
    if seed[:1] in (b"{", b"[") and rng.random() < 0.5:
        try:
            value = json.loads(seed)
        except (ValueError, RecursionError):
            return _bytes_changed(seed, rng)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            value = _value_changed(value, rng)
        return json.dumps(value).encode("utf-8", "surrogatepass")
    return _bytes_changed(seed, rng)


def grown(seed: bytes, rng: Random, size: int) -> bytes:
    """Return the seed with a piece of it repeated until it has about `size` bytes; a number in it counts the pieces."""
    start = rng.randrange(len(seed) + 1)
    piece = seed[start : start + rng.choice((1, 3, 8, 40, 200))] or b"[],"
    count = size // len(piece)
    data = bytearray(seed[:start] + piece * count + seed[start:])
    if rng.random() < 0.5:  # before the piece, where formats say how many there are, or how long it is
        at = rng.randrange(start + 1)
        data[at : at + 8] = struct.pack("<Q", rng.choice((count, len(data), len(piece) * count)))
    return bytes(data)


def _bytes_changed(seed: bytes, rng: Random) -> bytes:
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(8):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                data[at : at + 8] = struct.pack("<Q", rng.choice((*_NUMBERS, *_LARGE)) % (1 << 64))
            case 3:
                data[at : at + 4] = struct.pack("<I", rng.choice((*_NUMBERS, *_LARGE)) % (1 << 32))
            case 4:
                del data[at : at + rng.choice((1, 4, 8, 100, len(data)))]
            case 5:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 8, 40)))
            case 6:
                other = rng.randrange(len(data) + 1)
                data[at:at] = data[other : other + rng.choice((1, 8, 64))]
            case 7:
                data[at:at] = rng.choice((b"[", b"{", b'"', b",", b":", b"\\u0000", b"9" * 30, b"\xff", b"[" * 3000))
    return bytes(data)


def _value_changed(value: Any, rng: Random) -> Any:
    """Return the value with one place in it, found by chance, replaced, left out or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        result = dict(value)
        key = rng.choice(list(result))
        match rng.randrange(8):
            case 0:
                del result[key]
            case 1:
                result[rng.choice(("x", "", key + ".", key[:-1], key.upper()))] = result[key]
            case 2:
                result[rng.choice(list(result))] = result[key]
            case _:
                result[key] = _value_changed(result[key], rng)
        return result
    if isinstance(value, list) and value and rng.random() < 0.8:
        items = list(value)
        at = rng.randrange(len(items))
        match rng.randrange(6):
            case 0:
                del items[at]
            case 1:
                items.insert(at, items[rng.randrange(len(items))])
            case _:
                items[at] = _value_changed(items[at], rng)
        return items
    if isinstance(value, str) and value and rng.random() < 0.4:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(("", "\ud800", "🦄", " ", "{{", "%", "\\", "\0")) + value[at + 1 :]
    if type(value) is int and rng.random() < 0.4:
        return value + rng.choice((-1, 1, value, -value, 8, -2 * value))
    return rng.choice(_VALUES)
