"""The fields of a GGUF header, read one after the other; every length is checked before anything is allocated."""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.checkpoint.gguf.plain_strings import PlainStrings
from unicorn_async.errors import CheckpointError

if TYPE_CHECKING:
    from typing import BinaryIO

GgufValue: TypeAlias = "str | int | float | bool | tuple[str, ...] | PlainStrings | array[int] | array[float]"
"""A value of the metadata. Arrays of booleans are arrays of 0 and 1."""

MAX_HEADER_BYTES = 64 << 20  # a vocabulary of 262,144 tokens takes a tenth of it
MAX_STRINGS = 1 << 21  # in all arrays together
MAX_KEY_BYTES = (1 << 16) - 1
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_PIECE_BYTES = 1 << 20
_MANY = 4096  # strings in an array, of which each takes a third of a microsecond
_STRING_BYTES = 32  # with its length, for which a piece has room: more than those of vocabularies have
_LENGTH = struct.Struct("<Q")


def shown(value: GgufValue | None) -> str:
    """Return a value for an error message, which must not be long."""
    return f"an array of {len(value)}" if isinstance(value, tuple | PlainStrings | array) else repr(value)[:100]


class FieldReader:
    """Reads little-endian fields of a file of `file_bytes`; `source` names it. Errors are CheckpointErrors."""

    def __init__(self, file: BinaryIO, file_bytes: int, source: str) -> None:
        self._file = file
        self._limit = min(file_bytes, MAX_HEADER_BYTES)
        self._source = source
        self._strings_left = MAX_STRINGS
        self.offset = 0

    @property
    def left(self) -> int:
        """Bytes that the header can still have."""
        return self._limit - self.offset

    def take(self, nbytes: int, what: str) -> bytes:
        """Return the next bytes; `what` says in errors what they are."""
        if nbytes > self.left:
            raise self.error(f"{what} of {nbytes} bytes, at most {self.left} are left of the header")
        data = self._file.read(nbytes)
        if len(data) != nbytes:
            raise self.error(f"truncated while it was read: {what} of {nbytes} bytes, got {len(data)}")
        self.offset += nbytes
        return data

    def u32(self, what: str) -> int:
        """Return an unsigned integer of 32 bits."""
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        """Return an unsigned integer of 64 bits."""
        return int.from_bytes(self.take(8, what), "little")

    def count(self, what: str, smallest_bytes: int, most: int | None = None) -> int:
        """Return a number of things of at least `smallest_bytes` each, which the rest of the header can hold."""
        count = self.u64(what)
        if count * smallest_bytes > self.left:
            raise self.error(f"{what}: {count}, but {self.left} bytes are left of the header")
        if most is not None and count > most:
            raise self.error(f"{what}: {count}, at most {most} are allowed")
        return count

    def string(self, what: str, most_bytes: int | None = None) -> str:
        """Return a string with its length in front."""
        (nbytes,) = _LENGTH.unpack(self.take(8, what))
        if most_bytes is not None and nbytes > most_bytes:
            raise self.error(f"{what} of {nbytes} bytes, at most {most_bytes} are allowed")
        try:
            return self.take(nbytes, what).decode("utf-8")
        except UnicodeDecodeError as exc:
            raise self.error(f"{what}: not UTF-8 (byte {exc.start})") from exc

    def value(self, key: str) -> GgufValue:
        """Return a value of the metadata with its type in front."""
        kind = self.u32(f"the type of {shown(key)}")
        if kind == _ARRAY:
            return self._array(key)
        return self.string(shown(key)) if kind == _STRING else self._scalar(kind, key)

    def error(self, message: str) -> CheckpointError:
        """Return an error that names file and place."""
        return CheckpointError(f"{self._source}: at byte {self.offset}: {message}")

    def _scalar(self, kind: int, key: str) -> int | float | bool:
        layout = self._layout(kind, key)
        value: int | float = struct.unpack(layout, self.take(struct.calcsize(layout), shown(key)))[0]
        if kind != _BOOL:
            return value
        if value not in (0, 1):
            raise self.error(f"{shown(key)}: expected a boolean, got byte {value}")
        return bool(value)

    def _array(self, key: str) -> GgufValue:
        kind = self.u32(f"the element type of {shown(key)}")
        what = f"elements of {shown(key)}"
        if kind == _STRING:
            count = self.count(what, 8, self._strings_left)
            self._strings_left -= count
            plain = self._plain_strings(count) if count >= _MANY else None
            return self._strings(count, what) if plain is None else plain
        layout = self._layout(kind, key)
        size = struct.calcsize(layout)
        values = array(layout[1:])
        data = self.take(self.count(what, size) * size, what)
        if kind == _BOOL and (others := data.translate(None, b"\0\1")):
            raise self.error(f"{shown(key)}: expected booleans, got byte {others[0]}")
        values.frombytes(data)
        return values

    def _plain_strings(self, count: int) -> PlainStrings | None:
        """Read strings without a NUL, most of them short, all at once; None where they are others, and nothing is read.

        A vocabulary has hundreds of thousands. Of a piece all is looked at, so one that holds few is small.
        """
        from unicorn_async.checkpoint.gguf import plain_parts  # with NumPy, which no header of a few strings needs

        piece_bytes = min(_PIECE_BYTES, _STRING_BYTES * count)
        parts: list[bytes] = []
        left, offset = count, self.offset
        while left:
            data = self._file.read(min(piece_bytes, self._limit - offset))
            part, found = plain_parts.plain_part(data, left)
            if not found:
                self._file.seek(self.offset)
                return None
            parts.append(part)
            offset += len(part)
            left -= found
            self._file.seek(offset)
        self.offset = offset
        return PlainStrings(tuple(parts), count)

    def _strings(self, count: int, what: str) -> tuple[str, ...]:
        """Read any strings, one by one out of large pieces."""
        found: list[str] = []
        data, position = b"", 0
        while len(found) < count:
            stop = position + 8
            nbytes = int.from_bytes(data[position:stop], "little")
            if stop + nbytes <= len(data):
                position = stop + nbytes
                try:
                    found.append(data[stop:position].decode())
                except UnicodeDecodeError as exc:
                    self.offset += position
                    raise self.error(f"{what}: not UTF-8 (byte {exc.start})") from exc
                continue
            # What the piece ends in the middle of is read again, by itself, and the next piece behind it.
            self._file.seek(self.offset + position)
            self.offset += position
            found.append(self.string(what))
            position = 0
            data = self._file.read(min(_PIECE_BYTES, self.left)) if len(found) < count else b""
        self._file.seek(self.offset + position)
        self.offset += position
        return tuple(found)

    def _layout(self, kind: int, key: str) -> str:
        if kind not in _SCALARS:
            what = "an array inside an array" if kind == _ARRAY else f"type {kind}, which is not known"
            raise self.error(f"{shown(key)} has {what}")
        return _SCALARS[kind]
