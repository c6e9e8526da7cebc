"""What `serve run` and a Serve configuration may say of the application."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_COUNTS = ("min_replicas", "max_replicas", "max_ongoing", "target_ongoing", "max_context")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The application's arguments."""

    model: str  # a directory, a file or a name, the same on each machine
    device: str | None = None  # index or part of a name, on each machine; None = the fastest GPU that fits
    min_replicas: int = 1
    max_replicas: int = 1
    max_ongoing: int = 256  # requests and websockets at a replica; further ones wait for a place
    target_ongoing: int = 32  # requests and websockets a replica, by which their number is chosen
    num_gpus: float = 1.0  # that Ray counts for a replica; 0 where Ray does not know the GPU
    num_cpus: float = 1.0
    max_context: int | None = None
    allow_software: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, object]) -> Self:
        """Return the arguments; on `serve run`'s command line all of them are texts.

        Raises:
            ConfigError: there is no model, an unknown name or a value that can't be.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(given.keys() - known):
            raise ConfigError(f"unknown arguments {unknown}; there are {sorted(known)}")
        if not given.get("model"):
            raise ConfigError("give the model to serve: model=NAME")
        arguments = cls(**{name: _value(name, value) for name, value in given.items()})  # type: ignore[arg-type]
        least, most = arguments.min_replicas, arguments.max_replicas
        if least > most:
            raise ConfigError(f"min_replicas {least} is more than max_replicas {most}")
        return arguments


def _value(name: str, value: object) -> object:
    if name in _COUNTS:
        return _number(name, value, int, least=1)
    if name in ("num_gpus", "num_cpus"):
        return _number(name, value, float, least=0)
    if name == "allow_software":
        if str(value).lower() not in ("true", "false"):
            raise ConfigError(f"{name}: expected true or false, got {value!r}")
        return str(value).lower() == "true"
    return str(value)


def _number(name: str, value: object, kind: type[int] | type[float], *, least: int) -> int | float:
    try:
        number = kind(str(value))
    except ValueError as exc:
        raise ConfigError(f"{name}: expected a number, got {value!r}") from exc
    if not least <= number < 1 << 20:
        raise ConfigError(f"{name}: expected {least} or more, got {number}")
    return number
