"""Grammar rules of calls whose arguments stand in braces, texts between marks of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from unicorn_async.calls.argument_grammar import ANY_TEXT, Arguments
from unicorn_async.calls.argument_types import resolved, type_of, types_of
from unicorn_async.calls.braced_reader import HEAD, QUOTE
from unicorn_async.calls.tag_grammar import slashes
from unicorn_async.errors import GrammarError

if TYPE_CHECKING:
    from unicorn_async.calls.tool import Tool

_KEY = re.compile(r"[\w.$-]{1,128}")
_MOST_EXTRA = 15  # arguments whose names the model chooses, beside the first
_MOST_DEPTH = 12  # of values within values that have rules of their own
_MOST_RULES = 2048  # of a tool
_WHOLE_NUMBER = "-?(0|[1-9][0-9]{0,15})"
_SHARED = (
    'any: quoted | NUMBER | "true" | "false" | "null" | list | object',
    'list: "[" (any ("," any)*)? "]"',
    'object: "{" (key ":" any ("," key ":" any)*)? "}"',
    "key: /[A-Za-z_][A-Za-z0-9_]{0,63}/",
    rf"NUMBER: /{_WHOLE_NUMBER}(\.[0-9]{{1,16}})?([eE][+-]?[0-9]{{1,3}})?/",
)
_HELD = {
    "string": {"maxLength", "minLength", "pattern"},
    "array": {"items", "maxItems", "minItems"},
    "object": {"additionalProperties", "properties", "required"},
}
_SAID = frozenset(("$defs", "$ref", "$schema", "anyOf", "const", "default", "definitions", "enum", "oneOf", "type"))
_TOLD = frozenset(("deprecated", "description", "examples", "title"))
_SCALARS = frozenset(("boolean", "integer", "null", "number"))
_NUMBERS = frozenset(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"))


class BracedRules:
    """Rules of each tool's call, `one_…`; `control` has the markers that are control tokens.

    `json_rule` writes that of a JSON schema, which is strict or not: values without marks are JSON.
    """

    def __init__(self, control: Mapping[str, int], json_rule: Callable[[Mapping[str, object], bool], str]) -> None:
        self.json_rule = json_rule
        self.mark = f"<[{control[QUOTE]}]>" if QUOTE in control else json.dumps(QUOTE)
        self._is_control = QUOTE in control

    def shared(self) -> list[str]:
        """Return the rules that those of all tools use."""
        return [*_SHARED, *self.text("quoted", ANY_TEXT)]

    def of(self, tool: Tool, index: int) -> list[str]:
        """Return the rules of a tool's call.

        Raises:
            GrammarError: an argument can't be written so, or a strict tool says more of it than can be held to.
        """
        arguments = Arguments(tool)
        made = _Values(tool, arguments, self, f"value_{index}")
        head = json.dumps(f"{HEAD}{tool.name}{{")
        if arguments.extra is not None:
            value = made.value(arguments.extra, 0)
            more = f'(more_{index} ("," more_{index}){{0,{_MOST_EXTRA}}})?'
            return [f'one_{index}: {head} {more} "}}"', f'more_{index}: key ":" {value}', *made.rules]
        members = [(each.name, each.schema, each.is_required) for each in arguments.listed]
        return [f'one_{index}: {head} {made.members(members, 0)} "}}"', *made.rules]

    def text(self, rule: str, pattern: str) -> list[str]:
        """Return the rules of a text that an expression matches."""
        terminal = rule.upper()
        if self._is_control:
            return [f"{rule}: {self.mark} {terminal} {self.mark}", f"{terminal}: /{slashes(pattern)}/"]
        escaped = slashes(QUOTE.replace("|", r"\|"))
        own = f"/{slashes(pattern)}/ & ~/{ANY_TEXT}{escaped}{ANY_TEXT}/"
        return [f"{rule}: {self.mark} {rule}_end", f"{rule}_end[lazy]: {terminal} {self.mark}", f"{terminal}: {own}"]


class _Values:
    """Rules of one tool's values, which are `prefix` and a number."""

    def __init__(self, tool: Tool, arguments: Arguments, shared: BracedRules, prefix: str) -> None:
        self.rules: list[str] = []
        self._tool = tool
        self._arguments = arguments
        self._shared = shared
        self._prefix = prefix
        self._count = 0

    def value(self, schema: object, depth: int) -> str:
        """Return the name of the rule of values that fit a schema."""
        root = self._arguments.root
        schema = resolved(schema, root)
        if not isinstance(schema, Mapping) or depth > _MOST_DEPTH:
            if isinstance(schema, Mapping) and self._tool.strict:
                raise self._refusal(f"values more than {_MOST_DEPTH} deep")
            return "any"
        types = types_of(schema, root)
        self._check(schema, types)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        parts = schema.get("anyOf", schema.get("oneOf"))
        name = self._name()
        if isinstance(values, list):
            ways = [self._literal(value) for value in values]
        elif isinstance(parts, list):
            ways = [self.value(part, depth + 1) for part in parts]
        else:
            ways = [self._of_type(kind, schema, depth) for kind in sorted(types - _SCALARS)]
            ways += [self._scalar(schema, types & _SCALARS)] if types & _SCALARS else []
        self.rules.append(f"{name}: {' | '.join(dict.fromkeys(ways)) or 'any'}")
        return name

    def members(self, members: list[tuple[str, object, bool]], depth: int) -> str:
        """Return the name of the rule of an object's members, in their order."""
        base = self._name()
        for number, (key, schema, is_required) in enumerate(members):
            if _KEY.fullmatch(key) is None:
                raise self._refusal(f"{key!r} as an argument's name")
            this, after = f"{base}_{number}", f"{base}_{number + 1}"
            self.rules.append(f"member_{this}: {json.dumps(key + ':')} {self.value(schema, depth + 1)}")
            skips = "" if is_required else f" | first_{after}"
            self.rules.append(f"first_{this}: member_{this} next_{after}{skips}")
            skips = "" if is_required else f" | next_{after}"
            self.rules.append(f'next_{this}: "," member_{this} next_{after}{skips}')
        last = f"{base}_{len(members)}"
        self.rules += [f'first_{last}: ""', f'next_{last}: ""']
        return f"first_{base}_0"

    def _of_type(self, kind: str, schema: Mapping[str, object], depth: int) -> str:
        match kind:
            case "string":
                pattern = self._arguments.text(schema)
                if pattern == ANY_TEXT:
                    return "quoted"
                name = self._name()
                self.rules += self._shared.text(name, pattern)
                return name
            case "array":
                return self._list(schema, depth)
            case _:
                return self._object(schema, depth)

    def _scalar(self, schema: Mapping[str, object], types: frozenset[str]) -> str:
        """Return the name of the rule of numbers, booleans and null, which are written as JSON."""
        name = self._name()
        own = {key: value for key, value in schema.items() if key in _NUMBERS} | {"type": sorted(types)}
        self.rules.append(f"{name}: {self._shared.json_rule(own, self._tool.strict)}")
        return name

    def _list(self, schema: Mapping[str, object], depth: int) -> str:
        item = self.value(schema.get("items", True), depth + 1)
        least, most = schema.get("minItems"), schema.get("maxItems")
        least = least if isinstance(least, int) and least > 0 else 0
        if isinstance(most, int) and most < 1:
            return '"[" "]"'
        more = f"{{{max(least - 1, 0)},{most - 1 if isinstance(most, int) else ''}}}"
        items = f'{item} ("," {item}){more}'
        return f'"[" {items} "]"' if least else f'"[" ({items})? "]"'

    def _object(self, schema: Mapping[str, object], depth: int) -> str:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, Mapping) or not properties:
            return "object" if schema.get("additionalProperties", True) is not False else '"{" "}"'
        needed = required if isinstance(required, list) else []
        members = [(str(key), part, key in needed) for key, part in properties.items()]
        return f'"{{" {self.members(members, depth)} "}}"'

    def _literal(self, value: object) -> str:
        """Return what stands for one value."""
        if type_of(value) == "string":
            inner = json.dumps(value) if value else ""
            return f"{self._shared.mark} {inner} {self._shared.mark}"
        if isinstance(value, dict | list) and value:
            raise self._refusal(f"{json.dumps(value)[:60]} as the one value of an argument")
        return json.dumps(json.dumps(value))

    def _check(self, schema: Mapping[str, object], types: frozenset[str]) -> None:
        if not self._tool.strict:
            return
        held = (_SAID | _TOLD).union(*(_HELD.get(kind, _NUMBERS) for kind in types))
        for key in sorted(schema.keys() - held):
            raise self._refusal(repr(key))

    def _refusal(self, what: str) -> GrammarError:
        return GrammarError(f"{self._tool.name}: the form of calls that this model has can't hold to {what}")

    def _name(self) -> str:
        self._count += 1
        if self._count > _MOST_RULES:
            raise self._refusal(f"more than {_MOST_RULES} kinds of values")
        return f"{self._prefix}_{self._count}"
