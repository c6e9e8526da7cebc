"""Reading JSON that a stranger sent."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, NoReturn

from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.extent import check_extent

if TYPE_CHECKING:
    from collections.abc import Collection

JSON_TYPES: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512  # of metadata, the last two in characters


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _object_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object's fields; of one that is there twice nobody could say which is meant."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                shown = key[:80].encode("utf-8", "replace").decode()
                raise ApiError(f"{shown}: is there more than once", code="duplicate_parameter", param=shown)
            seen.add(key)
    return fields


def parse_object(text: str | bytes) -> Fields:
    """Parse a message whose top level has to be a JSON object.

    Raises:
        ApiError: status 400; not UTF-8, not JSON, nested too deeply, not an object, or a field is there twice; 413, it
            has more in it than any request needs.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        check_extent(text)
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object_once)
    except RecursionError as exc:
        raise ApiError("the message is nested too deeply", code="invalid_json") from exc
    except json.JSONDecodeError as exc:
        raise ApiError(f"the message is not valid JSON: {exc}", code="invalid_json") from exc
    except ValueError as exc:
        why = "a number has too many digits" if "digits" in str(exc) else str(exc)
        raise ApiError(f"the message is not valid JSON: {why}", code="invalid_json") from exc
    if not isinstance(data, dict):
        raise ApiError(f"the message: expected a JSON object, got {type_name(data)}", code="invalid_json")
    return Fields(data)


def type_name(value: object) -> str:
    """Return what JSON calls the value's type, with an article."""
    return JSON_TYPES.get(type(value), type(value).__name__)


class Fields:
    """A JSON object read field by field; null counts as absent, and every refusal names the field's full path."""

    __slots__ = ("_data", "_path")

    def __init__(self, data: dict[str, object], path: str = "") -> None:
        self._data = data
        self._path = path

    def name(self, key: str) -> str:
        """Return the field's path from the top of the message, e.g. `text.format`."""
        return f"{self._path}.{key}" if self._path else key

    def wrong(self, key: str, wanted: str, *, code: str = "invalid_type") -> ApiError:
        """Return the error for a field that is not what was wanted."""
        value = self._data.get(key)
        shown = type_name(value) if code == "invalid_type" else repr(value)[:80]
        return ApiError(f"{self.name(key)}: expected {wanted}, got {shown}", code=code, param=self.name(key))

    def unsupported(self, key: str, why: str) -> ApiError:
        """Return the error for a field that is understood and can't be honoured."""
        return ApiError(f"{self.name(key)}: {why}", code="unsupported_value", param=self.name(key))

    @property
    def data(self) -> dict[str, object]:
        """The object itself, unread."""
        return self._data

    def keys(self) -> tuple[str, ...]:
        """Return the names of all fields."""
        return tuple(self._data)

    def value(self, key: str) -> object:
        """Return whatever the field holds, None where it is absent."""
        return self._data.get(key)

    def string(self, key: str, *, max_length: int | None = None) -> str | None:
        """Return a string that can be encoded as UTF-8."""
        value = self._data.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return checked_text(value, self.name(key), max_length=max_length)

    def choice(self, key: str, known: Collection[str]) -> str | None:
        """Return one of the strings that the API knows there."""
        value = self.string(key)
        if value is not None and value not in known:
            raise self.wrong(key, f"one of {', '.join(known)}", code="invalid_value")
        return value

    def boolean(self, key: str) -> bool | None:
        """Return true or false."""
        value = self._data.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(key, "a boolean")

    def integer(self, key: str, low: int, high: int) -> int | None:
        """Return an integer within bounds, both included."""
        value = self._data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "an integer")
        if not low <= value <= high:
            raise self.wrong(key, f"{low} to {high}", code="invalid_value")
        return value

    def number(self, key: str) -> float | None:
        """Return a finite number."""
        value = self._data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.wrong(key, "a finite number", code="invalid_value")
        return number

    def array(self, key: str) -> list[object] | None:
        """Return an array, its items unread."""
        value = self._data.get(key)
        if value is None or isinstance(value, list):
            return value
        raise self.wrong(key, "an array")

    def object(self, key: str) -> Fields | None:
        """Return an object to read on from."""
        value = self._data.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Fields(value, self.name(key))

    def metadata(self) -> dict[str, str]:
        """Return the object of strings that clients attach, within OpenAI's limits; empty where it is absent."""
        key = "metadata"
        fields = self.object(key)
        if fields is None:
            return {}
        if len(fields._data) > MAX_PAIRS:
            message = f"{self.name(key)}: expected at most {MAX_PAIRS} pairs, got {len(fields._data)}"
            raise ApiError(message, code="invalid_value", param=self.name(key))
        found: dict[str, str] = {}
        for name in fields._data:
            checked_text(name, self.name(key), max_length=MAX_KEY)
            text = fields.string(name, max_length=MAX_VALUE)
            if text is None:
                raise fields.wrong(name, "a string")
            found[name] = text
        return found

    def without(self, *keys: str) -> Fields:
        """Return the same object without some of its fields."""
        return Fields({key: value for key, value in self._data.items() if key not in keys}, self._path)

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Raise for the first field that is not among those known."""
        for key in self._data:
            if key not in known:
                shown = self.name(key)[:80].encode("utf-8", "replace").decode()
                raise ApiError(f"{shown}: unknown parameter", code="unknown_parameter", param=shown)

    def refuse_unknown_values(self, known: Collection[str]) -> None:
        """Raise for the first field that is not among those known, and is not null, which clients send for nothing."""
        self.without(*(key for key, value in self._data.items() if value is None)).refuse_unknown(known)


def checked_text(text: str, name: str, *, max_length: int | None = None) -> str:
    """Return the text if it is valid Unicode and not too long.

    JSON's escapes can spell half of a surrogate pair, which no tokenizer and no socket takes.
    """
    if max_length is not None and len(text) > max_length:
        raise ApiError(
            f"{name}: expected at most {max_length} characters, got {len(text)}", code="invalid_value", param=name
        )
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise ApiError(
            f"{name}: not valid Unicode: {exc.reason} at {exc.start}", code="invalid_value", param=name
        ) from exc
    return text
