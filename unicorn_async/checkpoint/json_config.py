"""Typed reading of config.json, whose author is not trusted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.file_traits import NO_TRAITS, FileTraits
from unicorn_async.config import Activation
from unicorn_async.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ACTIVATIONS = {
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
}
MAX_COUNT = 1 << 24
_MAX_LAYERS = 1 << 12
FACTOR_RANGE = (1e-6, 1e6)
_MAX_NUMBER = sys.float_info.max  # integers of a JSON file may be larger


class JsonConfig:
    """One object of config.json with typed getters; every complaint names the key and the value.

    `traits` are those of the files beside it.
    """

    def __init__(self, raw: Mapping[str, object], where: str = "config.json", traits: FileTraits = NO_TRAITS) -> None:
        self.raw = raw
        self.where = where
        self.traits = traits
        self._asked: set[str] = set()

    def refuse_unread(self, neutral: Mapping[str, tuple[object, ...]]) -> None:
        """Refuse keys that nobody has asked for; `neutral` has the values by which each changes nothing.

        Raises:
            UnsupportedModelError: a key has another value.
        """
        for name, values in neutral.items():
            value = self.raw.get(name)
            if value is not None and name not in self._asked and value not in values:
                raise UnsupportedModelError(f"{self.where}: {name}: {str(value)[:100]} is not supported here")

    def has(self, name: str) -> bool:
        """Whether the key is there and not null."""
        self._asked.add(name)
        return self.raw.get(name) is not None

    def count(self, name: str, default: int | None = None, *, most: int = MAX_COUNT) -> int:
        """Return a positive integer."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise self._wrong(name, f"a positive integer, at most {most}", value)
        return value

    def index(self, name: str, default: int) -> int:
        """Return an integer that may be 0."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
            raise self._wrong(name, f"an integer from 0 to {MAX_COUNT}", value)
        return value

    def num_layers(self, default: int | None = None) -> int:
        """Return how many layers there are, so few that something may be made for each of them."""
        return self.count("num_hidden_layers", default, most=_MAX_LAYERS)

    def window(self, name: str, default: int | None = None) -> int:
        """Return a window in tokens, 0 where the key is null: everything is seen then."""
        return 0 if name in self.raw and self.raw[name] is None else self.count(name, default)

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite positive number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_NUMBER:
            raise self._wrong(name, "a positive number", value)
        return float(value)

    def factor(self, name: str, default: float | None = None) -> float:
        """Return a number that something is multiplied or divided by: neither side leaves the range of f32 for it."""
        value = self.number(name, default)
        low, high = FACTOR_RANGE
        if not low <= value <= high:
            raise self._wrong(name, f"{low} to {high}", value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def section(self, name: str) -> JsonConfig:
        """Return an object inside this one."""
        value = self._get(name, None)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return JsonConfig(value, f"{self.where}: {name}", self.traits)

    def texts(self, name: str) -> list[str] | None:
        """Return a list of strings, or None where the key is absent."""
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of strings", value)
        return value

    def indices(self, name: str) -> tuple[int, ...] | None:
        """Return a list of numbers from 0 on, or None where the key is absent."""
        self._asked.add(name)
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= MAX_COUNT for item in value):
            raise self._wrong(name, "a list of indices", value)
        return tuple(value)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Return token ids given as one integer, a list of them, or not at all."""
        value = self.raw.get(name)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= MAX_COUNT for item in ids):
            raise self._wrong(name, "token ids", value)
        return tuple(ids)

    def activation(self, name: str, default: str | None = None) -> Activation:
        """Return the FFN's activation function."""
        value = self.text(name, default)
        if value not in _ACTIVATIONS:
            raise UnsupportedModelError(
                f"{self.where}: {name}: {value[:100]!r} is not supported; known are {', '.join(sorted(_ACTIVATIONS))}"
            )
        return _ACTIVATIONS[value]

    def optional(self, name: str, default: float) -> float:
        """Return a factor, or 0 where the key is null; an absent key is the default."""
        return 0.0 if name in self.raw and self.raw[name] is None else self.factor(name, default)

    def factors(self, name: str) -> tuple[float, ...]:
        """Return a list of factors."""
        value = self._get(name, None)
        low, high = FACTOR_RANGE
        if not isinstance(value, list) or not all(type(item) in (int, float) and low <= item <= high for item in value):
            raise self._wrong(name, f"numbers from {low} to {high}", value)
        return tuple(float(item) for item in value)

    def _get(self, name: str, default: object) -> object:
        self._asked.add(name)
        value = self.raw.get(name)
        if value is not None:
            return value
        if default is None:
            raise CheckpointError(f"{self.where}: {name} is missing")
        return default

    def _wrong(self, name: str, wanted: str, value: object) -> CheckpointError:
        return CheckpointError(f"{self.where}: {name}: expected {wanted}, got {str(value)[:100]!r}")
