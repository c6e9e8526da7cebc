"""Numbers on the scripts' command lines; `count`, for positive whole ones, is unicorn_async.cli.options'."""

from __future__ import annotations

import argparse
import math


def whole(text: str) -> int:
    """Parse a whole number, 0 or more."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, got {text!r}")
    return int(text)


def amount(text: str) -> float:
    """Parse a finite number, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number, 0 or more, got {text!r}")
    return value


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    value = amount(text)
    if not value:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value


def head_shape(text: str) -> tuple[int, int, int]:
    """Parse query heads, heads of keys and values, and the size of a head, as in 32:8:128."""
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"expected query heads:kv heads:size of a head, as in 32:8:128, got {text!r}")
    num_heads, num_kv_heads, head_dim = map(int, parts)
    if num_heads % num_kv_heads:
        raise argparse.ArgumentTypeError(f"{text}: expected a multiple of {num_kv_heads} query heads, got {num_heads}")
    return num_heads, num_kv_heads, head_dim


def shape(text: str) -> tuple[int, int]:
    """Parse rows x columns, as in 4096x14336."""
    rows, _, columns = text.partition("x")
    if not all(part.isascii() and part.isdigit() and int(part) for part in (rows, columns)):
        raise argparse.ArgumentTypeError(f"expected rows x columns, such as 4096x14336, got {text!r}")
    return int(rows), int(columns)
