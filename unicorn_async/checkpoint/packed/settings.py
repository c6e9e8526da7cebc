"""Typed reading of what a configuration says of quantisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_CHARS = 100


class Settings:
    """An object of config.json; every complaint names where it is, the key and the value."""

    def __init__(self, raw: Mapping[str, object], where: str) -> None:
        self.raw = raw
        self.where = where

    def one_of(self, name: str, default: object, *known: object) -> object:
        """Return a value; raises UnsupportedModelError where it is none of those that are known."""
        value = self.raw.get(name)
        value = default if value is None else value
        if not any(value == one and type(value) is type(one) for one in known):
            expected = " or ".join(str(one) for one in known)
            raise self.unsupported(name, value, expected)
        return value

    def group_size(self) -> int:
        """Return how many columns share a scale, 0 for all of a row.

        Raises:
            CheckpointError: it is no such number.
        """
        value = self.raw.get("group_size")
        if value in (None, -1):
            return 0
        if type(value) is not int or not 0 < value < 1 << 24:
            raise CheckpointError(f"{self.where}: group_size: expected a positive integer or -1, got {_short(value)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false; raises CheckpointError for anything else."""
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.where}: {name}: expected true or false, got {_short(value)}")
        return value

    def unsupported(self, name: str, value: object, expected: str) -> UnsupportedModelError:
        """Return the error for a value that can't be read."""
        return UnsupportedModelError(f"{self.where}: {name}: {_short(value)} is not supported, expected {expected}")


def _short(value: object) -> str:
    return str(value)[:_MAX_CHARS]
