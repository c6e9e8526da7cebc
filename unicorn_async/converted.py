"""Fields of frozen dataclasses that may be given as text, and what makes of the text what it means."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Generic, TypeVar

from unicorn_async.errors import ConfigError

E = TypeVar("E", bound=Enum)
T = TypeVar("T")
Given_contra = TypeVar("Given_contra", contravariant=True)


class Converted(Generic[T, Given_contra]):
    """A field that is a T, and may be given as something else, which its dataclass's `__post_init__` converts.

    Type checkers see both by the descriptor's methods. At run time it has the default alone: a dataclass with slots
    puts the slot in its place.
    """

    def __init__(self, *default: T) -> None:
        self._default = default

    def __get__(self, instance: object, owner: type) -> T:
        if not self._default:
            raise AttributeError("the field has no default")
        return self._default[0]

    def __set__(self, instance: object, value: T | Given_contra) -> None:
        raise AttributeError("the field's dataclass has no slots")


def member_of(kind: type[E], option: str, value: object) -> E:
    """Return the member that a value is or names; raises ConfigError with the names that there are."""
    try:
        return kind(value)
    except ValueError:
        *names, last = (member.value for member in kind)
        raise ConfigError(f"{option}: expected {', '.join(names)} or {last}, got {value!r}") from None


def path_of(option: str, value: object) -> Path:
    """Return the path that a value is or names; raises ConfigError where it is neither, or empty."""
    if isinstance(value, str | Path) and value != "":
        return Path(value)
    raise ConfigError(f"{option}: expected a path, got {value!r}")
