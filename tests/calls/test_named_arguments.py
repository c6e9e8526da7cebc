"""Calls have the arguments that their tools name, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from unicorn_async.calls.named_arguments import named_alone

CLOSED = {"additionalProperties": False}
TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"properties": {"a": TEXT}}, {"properties": {"a": TEXT}, **CLOSED}),
        ({"properties": {}}, {"properties": {}, **CLOSED}),
        (
            {"properties": {"a": {"type": "array", "items": {"properties": {"b": TEXT}}}}},
            {"properties": {"a": {"type": "array", "items": {"properties": {"b": TEXT}, **CLOSED}}}, **CLOSED},
        ),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": TEXT}, "required": ["a"]}}},
            {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": TEXT}, "required": ["a"], **CLOSED}}},
        ),
        (
            {"anyOf": [{"properties": {"a": TEXT}}, {"type": "null"}]},
            {"anyOf": [{"properties": {"a": TEXT}, **CLOSED}, {"type": "null"}]},
        ),
        # a property called as a keyword is
        ({"properties": {"properties": TEXT}}, {"properties": {"properties": TEXT}, **CLOSED}),
    ],
)
def test_properties_that_nobody_named_are_left_out(schema: dict[str, Any], found: dict[str, Any]) -> None:
    assert named_alone(schema) == found


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": TEXT}, "additionalProperties": True},
        {"properties": {"a": TEXT}, "additionalProperties": TEXT},
        {"properties": {"a": TEXT}, "patternProperties": {"^x": TEXT}},
        {"properties": {"a": TEXT}, "required": ["b"]},
        {"properties": {"a": TEXT}, "minProperties": 2},
        {"allOf": [{"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}]},
        {"properties": {"a": TEXT, "b": TEXT}, "anyOf": [{"properties": {"a": {"const": "x"}}}, {"required": ["b"]}]},
        {"properties": {"a": TEXT}, "$ref": "#/$defs/A", "$defs": {"A": {"properties": {"b": TEXT}}}},
        {"properties": None, "required": 5, "items": [None], "$defs": 3},
    ],
)
def test_what_says_itself_what_else_may_come_stays(schema: dict[str, Any]) -> None:
    assert named_alone(schema) == schema


def test_what_lies_too_deep_stays() -> None:
    schema: dict[str, Any] = {"properties": {"a": TEXT}}
    for _ in range(100):
        schema = {"properties": {"a": schema}}
    assert named_alone(schema) is schema
