"""What a strict JSON schema may not ask for: the library lets keys of an object that are not named in it come twice."""

from __future__ import annotations

from typing import cast

from unicorn_async.errors import GrammarError

_OF_SCHEMAS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_OF_VALUES = ("const", "default", "enum", "examples")


def check_strict(schema: object) -> None:
    """Refuse what answers can't be held to.

    Raises:
        GrammarError: an object has to have more keys than are sure to differ from each other.
    """
    left = [schema]  # a stack of its own: schemas may be nested deeply
    while left:
        found = left.pop()
        if isinstance(found, list):
            left += found
        elif isinstance(found, dict):
            _check_keys(found)
            for key, value in found.items():
                if key in _OF_SCHEMAS and isinstance(value, dict):
                    left += value.values()
                elif key not in _OF_VALUES:
                    left.append(value)


def _check_keys(schema: dict[str, object]) -> None:
    least, required, named = (schema.get(key) for key in ("minProperties", "required", "properties"))
    if not isinstance(least, int) or (
        schema.get("additionalProperties") is False and not schema.get("patternProperties")
    ):
        return
    known = cast("dict[str, object]", named) if isinstance(named, dict) else {}
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    sure = len(names & known.keys()) + 1  # any other one differs from these
    if least > sure:
        raise GrammarError(
            f"minProperties: {least} can't be held to: keys that are not among `properties` may come twice, and only "
            f"{sure} are sure to differ here"
        )
