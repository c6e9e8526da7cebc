"""A tool's parameters without arguments that it does not name: programs call functions with what a model writes."""

from __future__ import annotations

from collections.abc import Mapping

_LAYERS = frozenset({"$dynamicRef", "$ref", "allOf", "anyOf", "dependentSchemas", "if", "not", "oneOf"})
_SAYS_ITSELF = frozenset({"additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties"})
_MAX_DEPTH = 64


def named_alone(schema: Mapping[str, object]) -> Mapping[str, object]:
    """Return a schema that takes no other properties than those that it names, wherever it leaves them open.

    What fits it fits the given one, too. One in which schemas are laid upon each other stays as it is: what one of them
    names the other leaves open.
    """
    return schema if _is_layered(schema, _MAX_DEPTH) else _closed(schema, _MAX_DEPTH)


def _is_layered(value: object, depth: int) -> bool:
    """Whether several schemas are about the same object, or too many lie within each other to tell."""
    if not depth:
        return True
    if isinstance(value, Mapping):
        parts = value.get("allOf")
        if (isinstance(parts, list) and len(parts) > 1) or ("properties" in value and value.keys() & _LAYERS):
            return True
        return any(_is_layered(inner, depth - 1) for inner in value.values())
    return isinstance(value, list) and any(_is_layered(inner, depth - 1) for inner in value)


def _closed(schema: Mapping[str, object], depth: int) -> dict[str, object]:
    found = dict(schema)
    for key in ("properties", "$defs", "definitions"):
        inner = found.get(key)
        if isinstance(inner, Mapping):
            found[key] = {name: _inner(part, depth - 1) for name, part in inner.items()}
    for key in ("items", "prefixItems", "allOf", "anyOf", "oneOf"):
        if key in found:
            found[key] = _inner(found[key], depth - 1)
    if not found.keys() & _SAYS_ITSELF and _names_all(found):
        found["additionalProperties"] = False
    return found


def _names_all(schema: Mapping[str, object]) -> bool:
    """Whether properties are named, and among them all that have to be there."""
    named, required = schema.get("properties"), schema.get("required", ())
    return (
        isinstance(named, Mapping)
        and isinstance(required, list | tuple)
        and all(isinstance(name, str) and name in named for name in required)
        and "minProperties" not in schema
    )


def _inner(value: object, depth: int) -> object:
    if isinstance(value, list):
        return [_inner(part, depth - 1) for part in value]
    return _closed(value, depth) if isinstance(value, Mapping) else value
