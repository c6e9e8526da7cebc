"""What a tool's arguments may be where they are written one by one, each without quotes: for grammars of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.calls.argument_types import TEXT_ALONE, resolved, types_of
from unicorn_async.calls.named_arguments import named_alone
from unicorn_async.errors import GrammarError

if TYPE_CHECKING:
    from unicorn_async.calls.tool import Tool

_LAYERS = frozenset({"allOf", "anyOf", "else", "if", "not", "oneOf", "then"})
_BETWEEN_KEYS = frozenset({"dependentRequired", "dependentSchemas", "maxProperties", "minProperties"})
_BY_NAMES = frozenset({"patternProperties", "propertyNames", "unevaluatedProperties"})
_MOST_OPTIONS = 256
_DEFINITIONS = ("$defs", "definitions")
ANY_TEXT = r"(.|\n)*"


class Argument(NamedTuple):
    """One of a tool's arguments."""

    name: str
    schema: object
    is_required: bool


class Literal(NamedTuple):
    """A value that is this text."""

    text: str


class FreeText(NamedTuple):
    """A value that is any text which a regular expression matches."""

    pattern: str


class Json(NamedTuple):
    """A value that is JSON of a schema."""

    schema: Mapping[str, object]


class Arguments:
    """A tool's arguments in their order; `extra` is the schema of those with names of the model's choice, if any.

    Raises:
        GrammarError: the tool is strict, and its parameters say more than can be told one by one.
    """

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._root = named_alone(tool.parameters)
        top = resolved(self._root, self._root)
        schema: Mapping[str, object] = top if isinstance(top, Mapping) else {}
        self._refuse(schema, _LAYERS | _BETWEEN_KEYS | _BY_NAMES)
        named, required, extra = (schema.get(key) for key in ("properties", "required", "additionalProperties"))
        properties: dict[str, object] = dict(named) if isinstance(named, Mapping) else {}
        needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        other = True if extra is None else extra
        properties |= {name: other for name in needed if name not in properties}
        self.listed = [Argument(name, part, name in needed) for name, part in properties.items()]
        self.extra = None if properties or other is False else other

    def json(self, schema: object) -> Mapping[str, object]:
        """Return the schema of one of them as one that stands alone."""
        if not isinstance(schema, Mapping):
            return {} if schema is not False else {"not": {}}
        return {**{key: self._root[key] for key in _DEFINITIONS if key in self._root}, **schema}

    @property
    def root(self) -> Mapping[str, object]:
        """The tool's parameters, to which schemas within them may refer."""
        return self._root

    def text(self, schema: Mapping[str, object]) -> str:
        """Return the expression of texts that fit a schema, where nothing but a text is meant."""
        return self._pattern(schema, TEXT_ALONE)

    def options(self, schema: object) -> list[Literal | FreeText | Json]:
        """Return what may be written as a value of one of them."""
        found: list[Literal | FreeText | Json] = []
        self._add(schema, found, 0)
        return list(dict.fromkeys(one for one in found if not isinstance(one, Json))) + [
            one for one in found if isinstance(one, Json)
        ]

    def _add(self, schema: object, found: list[Literal | FreeText | Json], depth: int) -> None:
        schema = resolved(schema, self._root)
        if depth > _MOST_OPTIONS or len(found) > _MOST_OPTIONS:
            raise GrammarError(f"{self._tool.name}: an argument with more than {_MOST_OPTIONS} kinds of values")
        if not isinstance(schema, Mapping):
            found.append(FreeText(ANY_TEXT))
            return
        layers = schema.get("allOf")
        if isinstance(layers, list) and len(layers) == 1 and isinstance(layers[0], Mapping):
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            self._add({**rest, **layers[0]}, found, depth + 1)
            return
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        parts = schema.get("anyOf", schema.get("oneOf"))
        types = types_of(schema, self._root)
        if isinstance(values, list):
            found += [Literal(value if isinstance(value, str) else json.dumps(value)) for value in values]
        elif isinstance(parts, list):
            for part in parts:
                self._add(part, found, depth + 1)
        elif "string" in types:
            found.append(FreeText(self._pattern(schema, types)))
            others = sorted(types - TEXT_ALONE)
            if others and found[-1] != FreeText(ANY_TEXT):
                found.append(Json(self.json({**schema, "type": others})))
        else:
            found.append(Json(self.json(schema)))

    def _pattern(self, schema: Mapping[str, object], types: frozenset[str]) -> str:
        self._refuse(schema, frozenset({"format"}))
        shortest, longest, pattern = (schema.get(key) for key in ("minLength", "maxLength", "pattern"))
        if isinstance(pattern, str):
            if shortest is not None or longest is not None:
                self._refuse(schema, frozenset({"maxLength", "minLength"}))
            return _whole(pattern)
        if isinstance(shortest, int) or isinstance(longest, int):
            bounds = f"{shortest if isinstance(shortest, int) else 0},{longest if isinstance(longest, int) else ''}"
            return rf"(.|\n){{{bounds}}}"
        # What looks like a container would be read as one.
        return rf"(\s*[^\s\[{{]{ANY_TEXT})?" if types & {"array", "object"} and "type" in schema else ANY_TEXT

    def _refuse(self, schema: Mapping[str, object], keys: frozenset[str]) -> None:
        if not self._tool.strict:
            return
        for key in sorted(schema.keys() & keys):
            raise GrammarError(f"{self._tool.name}: the form of calls that this model has can't hold to {key!r}")


def _whole(pattern: str) -> str:
    """Return the expression of a whole text for one that is looked for in it."""
    before = "" if pattern.startswith("^") else ANY_TEXT
    ends = pattern.endswith("$") and len(re.findall(r"\\*$", pattern[:-1])[0]) % 2 == 0
    return f"{before}({pattern.removeprefix('^')[: -1 if ends else None]}){'' if ends else ANY_TEXT}"
