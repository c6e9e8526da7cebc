"""Sizes, rates and times as people read them."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def size(nbytes: float) -> str:
    """Return a size in decimal units: 15.1 MB."""
    value, unit = float(nbytes), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 or value >= 99.95 else f"{value:.1f} {_UNITS[unit]}"


def rate(bytes_per_s: float | None) -> str:
    """Return a transfer rate: 1.8 GB/s."""
    return "– B/s" if bytes_per_s is None else f"{size(bytes_per_s)}/s"


def duration(seconds: float) -> str:
    """Return a time: 0.42 s, 12 s, 3 min 5 s."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"
