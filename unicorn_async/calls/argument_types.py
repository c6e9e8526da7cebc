"""Arguments that are written without quotes: what they are, by the schema of the tool that is called."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NoReturn

ALL_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
TEXT_ALONE = frozenset({"string"})
_MOST_SCHEMAS = 256  # that are looked at for one argument: they may refer to each other
_SURROGATE = re.compile("[\ud800-\udfff]")
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def argument_schema(parameters: Mapping[str, object], key: str) -> object:
    """Return what a tool's parameters say of one of them; true where that is nothing."""
    schema = resolved(parameters, parameters)
    for part in (schema, parameters):
        properties = part.get("properties") if isinstance(part, Mapping) else None
        if isinstance(properties, Mapping) and key in properties:
            return properties[key]
    extra = schema.get("additionalProperties", True) if isinstance(schema, Mapping) else True
    return extra if isinstance(extra, Mapping) else True


def resolved(schema: object, root: Mapping[str, object]) -> object:
    """Return the schema that one refers to within `root`, or itself; true where there is no such."""
    for _ in range(_MOST_SCHEMAS):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if reference is None:
            return schema
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        schema = root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(schema, Mapping) or name not in schema:
                return True
            schema = schema[name]
    return True


def types_of(schema: object, root: Mapping[str, object]) -> frozenset[str]:
    """Return the types of JSON that fit a schema, which is a part of `root`; all where it doesn't say."""
    return _Types(root).of(schema)


class _Types:
    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self._left = _MOST_SCHEMAS

    def of(self, schema: object) -> frozenset[str]:
        self._left -= 1
        schema = resolved(schema, self._root)
        if self._left < 0 or not isinstance(schema, Mapping):
            return ALL_TYPES
        found = _named(schema.get("type"))
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            found &= frozenset(type_of(value) for value in values) | _numbers(values)
        for key in ("anyOf", "oneOf"):
            parts = schema.get(key)
            if isinstance(parts, list) and parts:
                found &= frozenset[str]().union(*(self.of(part) for part in parts[:_MOST_SCHEMAS]))
        parts = schema.get("allOf")
        for part in parts[:_MOST_SCHEMAS] if isinstance(parts, list) else ():
            found &= self.of(part)
        return found or ALL_TYPES


def _named(kind: object) -> frozenset[str]:
    kinds = kind if isinstance(kind, list) else [kind]
    found = frozenset(name for name in kinds if isinstance(name, str)) & ALL_TYPES
    return (found | {"integer"} if "number" in found else found) or ALL_TYPES


def _numbers(values: list[object]) -> frozenset[str]:
    return frozenset({"number"}) if any(type_of(value) == "integer" for value in values) else frozenset()


def type_of(value: object) -> str:
    """Return the name that JSON Schema has for the type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def argument_json(text: str, types: frozenset[str]) -> str:
    """Return as JSON what is written without quotes, where a value of these types belongs; a string if it is none."""
    if types != TEXT_ALONE:
        written = text.strip()
        if "string" not in types:
            written = _PYTHON_WORDS.get(written, written)
        kind = type_of(json.loads(written)) if is_json(written) else "string"
        if kind != "string" and (kind in types or "string" not in types):
            return _without_surrogates(written)
    return f'"{string_part(text)}"'


def is_json(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return False
    return True


def string_part(text: str) -> str:
    """Return text as a part of a JSON string, without its quotes."""
    return _without_surrogates(json.dumps(text, ensure_ascii=False)[1:-1])


def _without_surrogates(text: str) -> str:
    """Return JSON with halves of characters escaped: a pair of them makes one, and no UTF-8 has them."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
