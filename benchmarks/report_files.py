"""Reports that batched.py and its like wrote, read again: what is missing or makes no sense is named by its place."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

# What a value has to be: a mapping with these keys, a list of at least one of these, or what a function does not name.
Expected: TypeAlias = "Mapping[str, Expected] | list[Expected] | Callable[[object], str]"
_LARGEST = 1e30


def a_text(value: object) -> str:
    """Name what is expected unless it is text."""
    return "" if isinstance(value, str) else "text"


def a_flag(value: object) -> str:
    """Name what is expected unless it is true or false."""
    return "" if isinstance(value, bool) else "true or false"


def an_amount(value: object) -> str:
    """Name what is expected unless it is a number, 0 or more."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if is_number and 0 <= value < _LARGEST else "a number, 0 or more"


def above_zero(value: object) -> str:
    """Name what is expected unless it is a number above 0."""
    return "a number above 0" if an_amount(value) or value == 0 else ""


def a_count(value: object) -> str:
    """Name what is expected unless it is a positive whole number."""
    return "" if isinstance(value, int) and not above_zero(value) else "a positive whole number"


SOURCE: dict[str, Expected] = {
    "model": a_text,
    "weights": a_text,
    "device": a_text,
    "driver": a_text,
    "software": a_flag,
}


def read_reports(name: str, expected: Mapping[str, Expected]) -> list[dict[str, Any]]:
    """Read a file of at least one report, each with what is expected; more in it does no harm.

    Raises:
        argparse.ArgumentTypeError: it can't be read, or something in it is absent or otherwise.
    """
    try:
        found = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise argparse.ArgumentTypeError(f"{name}: {exc}") from None
    except RecursionError:
        raise argparse.ArgumentTypeError(f"{name}: nested too deeply") from None
    check(name, found, {"reports": [expected]})
    reports: list[dict[str, Any]] = found["reports"]
    return reports


def check(name: str, found: object, expected: Expected) -> None:
    """See that what a file holds is what is expected; raises as `read_reports` does."""
    if wrong := _wrong(found, expected, ""):
        raise argparse.ArgumentTypeError(f"{name}: not what batched.py --json writes: {wrong}")


def _wrong(value: object, expected: Expected, place: str) -> str:
    """Say where something is absent or otherwise, first of all places; "" where all is well."""
    where = place or "the file"
    if isinstance(expected, Mapping):
        if not isinstance(value, dict):
            return f"{where}: expected an object"
        for key, inner in expected.items():
            inside = f"{place}.{key}" if place else key
            if key not in value:
                return f"{inside} is missing"
            if wrong := _wrong(value[key], inner, inside):
                return wrong
        return ""
    if isinstance(expected, list):
        if not isinstance(value, list) or not value:
            return f"{where}: expected a list of at least one"
        checked = (_wrong(one, expected[0], f"{place}[{index}]") for index, one in enumerate(value))
        return next((wrong for wrong in checked if wrong), "")
    wanted = expected(value)
    return f"{where}: expected {wanted}, got {_short(value)}" if wanted else ""


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
