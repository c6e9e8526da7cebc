"""JSON schemas of every kind that answers are made by, after the groups of the JSON Schema Test Suite."""

from __future__ import annotations

from typing import Any

STRING, INTEGER = {"type": "string", "maxLength": 8}, {"type": "integer", "minimum": -9, "maximum": 99}


def _object(properties: dict[str, Any], *, required: list[str] | None = None, more: Any = False) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": more,
    }


SCHEMAS: dict[str, Any] = {
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": INTEGER,
    "number": {"type": "number", "minimum": 0, "maximum": 10},
    "exclusive": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 7},
    "multiple": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[a-f]{2,4}[0-9]$"},
    "date": {"type": "string", "format": "date"},
    "email": {"type": "string", "format": "email"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "const": {"const": {"a": [1, None, "x"]}},
    "enum": {"enum": ["red", 7, None, True, [1]]},
    "types": {"type": ["null", "boolean"]},
    "items": {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 4},
    "prefix": {
        "type": "array",
        "prefixItems": [STRING, INTEGER],
        "items": {"type": "null"},
        "minItems": 2,
        "maxItems": 4,
    },
    "tuple": {"type": "array", "prefixItems": [INTEGER, INTEGER], "items": False, "minItems": 2},
    "object": _object({"name": STRING, "age": INTEGER}),
    "optional": _object({"a": INTEGER, "b": INTEGER, "c": INTEGER}, required=["b"]),
    "nested": _object({"a": _object({"b": _object({"c": {"type": "boolean"}})})}),
    "additional": {"type": "object", "additionalProperties": INTEGER, "maxProperties": 3},
    "anyOf": {"anyOf": [INTEGER, {"type": "boolean"}, _object({"x": INTEGER})]},
    "oneOf": {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 4}, {"maximum": 9}]},
    "ref": {
        "$ref": "#/$defs/point",
        "$defs": {
            "point": _object({"x": {"$ref": "#/$defs/number"}, "y": {"$ref": "#/$defs/number"}}),
            "number": INTEGER,
        },
    },
    "recursive": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": _object(
                {"value": INTEGER, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
            )
        },
    },
    "escaped names": _object({'a"b': INTEGER, "c\\d": INTEGER, "é/~": {"type": "null"}}),
    "unicode": {"enum": ["é", "日本", "😀", 'quote " and \\']},
    "discriminated": {
        "anyOf": [
            _object({"kind": {"const": "circle"}, "radius": INTEGER}),
            _object({"kind": {"const": "square"}, "side": INTEGER}),
        ]
    },
    "array of objects": {"type": "array", "items": _object({"id": INTEGER}), "minItems": 1, "maxItems": 3},
    "true": True,
}
