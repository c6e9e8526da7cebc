"""Grammar rules of calls whose arguments stand between tags."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from unicorn_async.calls.argument_grammar import ANY_TEXT, Arguments, FreeText, Literal
from unicorn_async.calls.call_format import CallKind
from unicorn_async.calls.tag_reader import Tags

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unicorn_async.calls.call_format import CallFormat
    from unicorn_async.calls.tool import Tool

_MOST_EXTRA = 16  # arguments whose names the model chooses
_NAME = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"


class TagRules:
    """Rules of each tool's call, `one_…`; `json_rule` writes that of a JSON schema, which is strict or not."""

    def __init__(
        self, form: CallFormat, control: Mapping[str, int], json_rule: Callable[[Mapping[str, object], bool], str]
    ) -> None:
        self._form = form
        self._control = control
        self._json_rule = json_rule
        self._tags = Tags.of(form)
        self._line = "\n" if self._tags.is_lined else ""
        self._closing = self._tags.value[1]
        self._not_closing = f"/{ANY_TEXT}{_escaped(self._closing)}{ANY_TEXT}/"

    def shared(self) -> list[str]:
        """Return the rules that those of all tools use."""
        if self._closing in self._control:
            return [f"free: ANY {self._marker(self._closing)}", f"ANY: /{ANY_TEXT}/"]
        ends = f"/{self._line and chr(92) + 'n?'}{_escaped(self._closing)}/"
        return [f"free[lazy]: ANY {ends}", f"ANY: /{ANY_TEXT}/ & ~{self._not_closing}"]

    def of(self, tool: Tool, index: int) -> list[str]:
        """Return the rules of a tool's call."""
        arguments = Arguments(tool)
        rules: list[str] = []
        parts: list[str] = []
        for number, (name, schema, is_required) in enumerate(arguments.listed):
            rule = f"arg_{index}_{number}"
            rules += self._argument(rule, json.dumps(name), schema, arguments, strict=tool.strict)
            parts.append(rule if is_required else f"{rule}?")
        if arguments.extra is not None:
            rules += self._argument(f"more_{index}", _NAME, arguments.extra, arguments, strict=tool.strict)
            parts.append(f"more_{index}{{0,{_MOST_EXTRA}}}")
        if self._form.kind is CallKind.KEYED:
            head, end = json.dumps(tool.name + "\n"), ""
        else:
            head, end = json.dumps(f"<function={tool.name}>\n"), json.dumps(self._tags.end)
        return [f"one_{index}: {head} {' '.join(parts)} {end}", *rules]

    def _argument(self, rule: str, name: str, schema: object, arguments: Arguments, *, strict: bool) -> list[str]:
        rules: list[str] = []
        ways: list[str] = []
        end = f"{json.dumps(self._line)} {self._marker(self._closing)}" if self._line else self._marker(self._closing)
        for number, option in enumerate(arguments.options(schema)):
            own = f"{rule}_{number}"
            match option:
                case Literal(text):
                    ways.append(f"{json.dumps(text)} {end}" if text else end)
                case FreeText(pattern) if pattern == ANY_TEXT:
                    ways = ["free"]
                    rules = []
                    break
                case FreeText(pattern):
                    ways.append(own)
                    rules += self._free(own, pattern)
                case _:
                    ways.append(f"{own} {end}")
                    rules.append(f"{own}: {self._json_rule(option.schema, strict)}")
        between, value = self._marker(self._tags.key[1]), self._marker(self._tags.value[0])
        before = f"{self._marker(self._tags.key[0])} {name} {between}"
        before += f' "\\n" {value}' if value else f" {json.dumps(self._line)}" if self._line else ""
        return [f'{rule}: {before} ({" | ".join(ways)}) "\\n"', *rules]

    def _free(self, rule: str, pattern: str) -> list[str]:
        terminal = rule.upper()
        if self._closing in self._control:
            return [f"{rule}: {terminal} {self._marker(self._closing)}", f"{terminal}: /{slashes(pattern)}/"]
        end = json.dumps(self._line + self._closing)
        return [f"{rule}[lazy]: {terminal} {end}", f"{terminal}: /{slashes(pattern)}/ & ~{self._not_closing}"]

    def _marker(self, text: str) -> str:
        if text in self._control:
            return f"<[{self._control[text]}]>"
        return json.dumps(text) if text else ""


def _escaped(text: str) -> str:
    return text.replace("/", r"\/")


def slashes(pattern: str) -> str:
    """Return an expression between slashes, whose own slashes are escaped."""
    parts: list[str] = []
    is_escaped = False
    for char in pattern:
        parts.append("\\/" if char == "/" and not is_escaped else char)
        is_escaped = char == "\\" and not is_escaped
    return "".join(parts).replace("\n", "\\n")
