"""JSON as a model's files must have it: an object, without a key that appears twice, of no more than such files have.

Small files are parsed at once. What may be large, headers and indices, is walked through member by member: what a
member says is checked before the next one is parsed, and Python's lock is never held for longer than one takes.
"""

from __future__ import annotations

import json
import os
import re
import stat
from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


MAX_FILE_BYTES = 16 << 20
MAX_MARKS = 1 << 17  # commas, colons and opening brackets of what is parsed at once; configurations have hundreds
_MARKS = (b",", b":", b"[", b"{")
_SPACE = re.compile(r"[ \t\n\r]*")


def parse_object(data: bytes, source: str) -> dict[str, object]:
    """Return the JSON object in `data`; `source` names it in errors.

    Raises:
        CheckpointError: not UTF-8, not JSON, too many values, nested too deeply, not an object, or a key appears twice.
    """
    marks = sum(map(data.count, _MARKS))
    if marks > MAX_MARKS:
        raise CheckpointError(f"{source}: {marks} commas, colons and brackets, at most {MAX_MARKS} are allowed")
    try:
        value = json.loads(decode(data, source), object_pairs_hook=_unique)
    except _TwiceError as exc:
        raise CheckpointError(f"{source}: {exc}") from exc
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{source}: not valid JSON ({exc})") from exc
    if not isinstance(value, dict):
        raise CheckpointError(f"{source}: expected a JSON object, got {type(value).__name__}")
    return value


def read_object(path: Path) -> dict[str, object]:
    """Return the JSON object in the file `path`.

    Raises:
        CheckpointError: the file can't be read or is larger than any such file, or see `parse_object`.
    """
    return parse_object(read_json(path), str(path))


def read_json(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the bytes of a JSON file, which can't have more than `most_bytes`.

    Raises:
        CheckpointError: the file can't be read or is larger.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would never end
            raise CheckpointError(f"{path}: is no regular file")
        with path.open("rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes > most_bytes:
                raise CheckpointError(f"{path}: {nbytes} bytes, a model's JSON file has {most_bytes} at most")
            return file.read(nbytes)
    except OSError as exc:
        raise CheckpointError(f"{path}: {exc.strerror or exc}") from exc


def decode(data: bytes, source: str) -> str:
    """Return the text that UTF-8 stands for; raises CheckpointError where it is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise CheckpointError(f"{source}: not UTF-8 (byte {exc.start})") from exc


class JsonWalk:
    """Goes through the objects of a JSON text member by member; places are characters. Errors are CheckpointErrors."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._decoder = json.JSONDecoder(object_pairs_hook=_unique)

    def whole(self, member: Callable[[str, int], int]) -> None:
        """Walk through the object that the text consists of; see `members`."""
        end = self._skip(self.members(self._skip(0), member))
        if end != len(self._text):
            raise self._error(end, "something follows the object")

    def members(self, at: int, member: Callable[[str, int], int]) -> int:
        """Call `member` for each member of the object at a place, with its key and the place of its value.

        It returns where the value ends, and this where the object does. Keys may appear twice: `member` has to notice.
        """
        at = self._skip(self._sign(at, "{"))
        if self._text.startswith("}", at):
            return at + 1
        while True:
            key, at = self.string(at)
            at = self._skip(self._sign(self._skip(at), ":"))
            at = self._skip(member(key, at))
            if self._text.startswith("}", at):
                return at + 1
            at = self._skip(self._sign(at, ","))

    def string(self, at: int) -> tuple[str, int]:
        """Return the string at a place, and where it ends."""
        if not self._text.startswith('"', at):
            raise self._error(at, "expected a string")
        try:
            return self._decoder.raw_decode(self._text, at)
        except ValueError as exc:
            raise self._error(at, str(exc)) from exc

    def value(self, at: int, most: int) -> tuple[object, int]:
        """Return the value at a place, of at most so many characters, and where it ends."""
        piece = self._text[at : at + most]
        try:
            value, length = self._decoder.raw_decode(piece)
        except _TwiceError as exc:
            raise CheckpointError(f"{self._source}: {exc}") from exc
        except (ValueError, RecursionError) as exc:
            longer = f", in {most} characters" if len(piece) == most else ""
            raise self._error(at, f"{exc}{longer}") from exc
        if length == most:
            raise self._error(at, f"a value of {most} characters or more")
        return value, at + length

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        return at if found is None else found.end()

    def _sign(self, at: int, sign: str) -> int:
        if not self._text.startswith(sign, at):
            raise self._error(at, f"expected {sign!r}")
        return at + 1

    def _error(self, at: int, what: str) -> CheckpointError:
        return CheckpointError(f"{self._source}: not valid JSON (at character {at}: {what})")


class _TwiceError(Exception):
    """A key appears twice."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _TwiceError(f"key {twice[:200]!r} appears twice")
    return result
