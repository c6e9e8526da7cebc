"""API keys: whose they are, what they are good for, and the file that they come from."""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_MAX_FILE_BYTES = 1 << 20
_REQUESTS = "max_requests="
_COMMENT = "#"
_ORDER = "the order is NAME KEY RIGHTS, or a key alone"
_NAME_DIGITS = 8  # of the hash that names a key: too few to find the key by


class Right(Enum):
    """What a client may do."""

    USE = "use"  # have questions answered, and see which models there are
    MANAGE = "manage"  # load and unload models
    METRICS = "metrics"  # see how the server does


ALL_RIGHTS = frozenset(Right)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key: `name` says whose it is, in the log and where clients are told apart."""

    name: str
    key: str = field(repr=False)
    rights: frozenset[Right] = ALL_RIGHTS
    max_requests: int | None = None  # under way at a time; None = as many as any client


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Read a file of keys, one a line: `NAME KEY [RIGHT …] [max_requests=N]`, or a key alone. `#` begins a comment.

    A key behind a name and without a right has all of them, and so has a key alone. One without a name has one made of
    the key, so that it is the same client wherever its line stands.

    Raises:
        ConfigError: the file can't be read, holds no key, or a line is none; no message has a key in it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as exc:
        raise ConfigError(f"{path}: the API keys can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: the API keys are not UTF-8: {exc.reason} at byte {exc.start}") from exc
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path}: expected at most {_MAX_FILE_BYTES} bytes of API keys")
    keys: list[ApiKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith(_COMMENT):
            keys.append(_parse(words, f"{path}, line {number}"))
    if not keys:
        raise ConfigError(f"{path}: expected an API key a line, got none")
    check_keys(keys)
    return tuple(keys)


def with_own(key: str | None, further: tuple[ApiKey, ...]) -> tuple[ApiKey, ...]:
    """Return the keys of a file behind the one that the server was given otherwise, if it was."""
    return further if key is None else (ApiKey("api_key", key), *further)


def check_keys(keys: list[ApiKey] | tuple[ApiKey, ...]) -> None:
    """Raise a ConfigError if a key is empty, no text or has control characters, or a name or a key is there twice."""
    names: set[str] = set()
    for key in keys:
        if not key.key.strip():
            raise ConfigError(f"API key {key.name!r}: expected a key, got an empty one")
        try:
            key.key.encode()
        except UnicodeEncodeError:  # which would show the key
            raise ConfigError(f"API key {key.name!r}: not UTF-8") from None
        if any(unicodedata.category(letter) == "Cc" for letter in key.key):
            raise ConfigError(f"API key {key.name!r}: expected no control characters")
        if key.name in names:
            raise ConfigError(f"API key {key.name!r}: the name is there twice")
        names.add(key.name)
    if len({key.key for key in keys}) < len(keys):
        raise ConfigError("API keys: one of them is there under two names")


def _parse(words: list[str], where: str) -> ApiKey:
    _check_order(words, where)
    if len(words) == 1:
        return ApiKey(f"key {hashlib.sha256(words[0].encode()).hexdigest()[:_NAME_DIGITS]}", words[0])
    name, key, *rest = words
    rights, max_requests = set[Right](), None
    for word in rest:
        if word.startswith(_COMMENT):
            break
        if word.startswith(_REQUESTS):
            value = word.removeprefix(_REQUESTS)
            if not (value.isascii() and value.isdigit() and int(value) > 0):
                raise ConfigError(f"{where}: max_requests: expected a positive whole number, got {value!r}")
            max_requests = int(value)
            continue
        try:
            rights.add(Right(word))
        except ValueError:
            known = ", ".join(right.value for right in Right)
            raise ConfigError(f"{where}: expected {known} or max_requests=N behind the key of {name!r}") from None
    return ApiKey(name, key, frozenset(rights) or ALL_RIGHTS, max_requests)


def _check_order(words: list[str], where: str) -> None:
    """Refuse a line whose key is none: its name, which the log has, would be the key."""
    key = words[min(1, len(words) - 1)].lower()
    if key in {right.value for right in Right}:
        raise ConfigError(f"{where}: expected a key, got the right {key!r}; {_ORDER}")
    if key.startswith(_REQUESTS):
        raise ConfigError(f"{where}: expected a key, got the limit max_requests; {_ORDER}")
    if key.startswith(_COMMENT):
        raise ConfigError(f"{where}: expected a key, got a comment; a comment has a line of its own, or follows rights")
