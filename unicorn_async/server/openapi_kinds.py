"""What schemas of requests are put together from; null is the same as absence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

Schema = dict[str, object]

TEXT: Schema = {"type": ["string", "null"]}
FLAG: Schema = {"type": ["boolean", "null"]}
OBJECT: Schema = {"type": ["object", "null"]}
NO: Schema = {"enum": [None, False]}
TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}
IDS: Schema = {"type": "array", "items": TOKEN_ID}


def integer(low: int, high: int) -> Schema:
    """A whole number within bounds."""
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


def number(low: float, high: float) -> Schema:
    """A number within bounds."""
    return {"type": ["number", "null"], "minimum": low, "maximum": high}


def positive(high: float) -> Schema:
    """A number above 0."""
    return {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": high}


def one_of(*names: str) -> Schema:
    """One of some texts."""
    return {"type": ["string", "null"], "enum": [*names, None]}


def text(most: int) -> Schema:
    """A text of at most so many characters."""
    return {"type": ["string", "null"], "maxLength": most}


def taken(names: Collection[str]) -> dict[str, Schema]:
    """Return fields of which this description says no more than that they are known."""
    return {name: {} for name in sorted(names)}


def closed(fields: Mapping[str, Schema], *required: str, has_nulls: bool = False) -> Schema:
    """An object without further fields, or with none that are not null."""
    more: Schema = {"type": "null"}
    schema: Schema = {
        "type": "object",
        "properties": dict(fields),
        "additionalProperties": more if has_nulls else False,
    }
    return {**schema, "required": list(required)} if required else schema


def or_null(*kinds: Schema) -> Schema:
    """One of these, or null."""
    return {"anyOf": [*kinds, {"type": "null"}]}


def present(names: Sequence[str]) -> list[Schema]:
    """Each of these fields is there, and not null."""
    return [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]
