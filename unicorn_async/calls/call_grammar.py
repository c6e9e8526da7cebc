"""Grammars of answers with calls: a call's arguments always fit its tool's schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from unicorn_async.calls import separated
from unicorn_async.calls.braced_grammar import BracedRules
from unicorn_async.calls.call_format import CallKind
from unicorn_async.calls.harmony_grammar import HarmonyRules
from unicorn_async.calls.named_arguments import named_alone
from unicorn_async.calls.python_grammar import PythonRules
from unicorn_async.calls.tag_grammar import TagRules
from unicorn_async.calls.tool import ToolMode
from unicorn_async.grammar import JSON_WHITE_SPACE, Grammar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.calls.call_format import CallFormat
    from unicorn_async.calls.tool import Tool, ToolUse

_MOST_CALLS = 16  # of one answer


def call_grammar(
    use: ToolUse,
    form: CallFormat,
    control: Mapping[str, int],
    answer: Mapping[str, object] | None = None,
    *,
    is_strict: bool = False,
) -> Grammar:
    """Return the grammar of an answer that calls tools, or may; `control` has the markers that are control tokens.

    Where no call is required, the answer is text otherwise, or JSON that fits the schema `answer`; of one that
    `is_strict` all keywords have to be known. In channels there need be no tools.

    Raises:
        GrammarError: it is too large.
    """
    if form.kind is CallKind.HARMONY:
        rules = HarmonyRules(control, lambda tool: f"%json {_arguments(tool)}")
        said = None if answer is None else f"%json {_schema(answer, strict=is_strict)}"
        return Grammar.lark("\n".join(rules.lines(use, said)))
    return Grammar.lark("\n".join(_Rules(use, form, control).lines(answer)))


class _Rules:
    def __init__(self, use: ToolUse, form: CallFormat, control: Mapping[str, int]) -> None:
        self._use = use
        self._form = form
        self._control = control
        self._more = _MOST_CALLS - 1 if use.parallel else 0

    def lines(self, answer: Mapping[str, object] | None) -> list[str]:
        tools = self._use.callable
        rules = self._written() if self._form.is_written else self._objects()
        rules.append("one: " + " | ".join(f"one_{index}" for index in range(len(tools))))
        if self._use.mode is ToolMode.REQUIRED:
            return [f"start: {self._calls()}", *rules]
        if answer is not None:
            return [f"start: answer | {self._calls()}", f"answer: %json {_schema(answer, strict=False)}", *rules]
        return [*self._text_or_calls(), *rules]

    def _objects(self) -> list[str]:
        tools = self._use.callable
        rules = [f"one_{index}: {self._one(tool, index)}" for index, tool in enumerate(tools)]
        return rules + [f"args_{index}: %json {_arguments(tool)}" for index, tool in enumerate(tools)]

    def _written(self) -> list[str]:
        def json_rule(schema: Mapping[str, object], strict: bool) -> str:
            return f"%json {_schema(schema, strict=strict)}"

        made: PythonRules | BracedRules | TagRules
        match self._form.kind:
            case CallKind.PYTHON:
                made = PythonRules(json_rule)
            case CallKind.BRACED:
                made = BracedRules(self._control, json_rule)
            case _:
                made = TagRules(self._form, self._control, json_rule)
        return [
            *made.shared(),
            *(line for index, tool in enumerate(self._use.callable) for line in made.of(tool, index)),
        ]

    def _calls(self) -> str:
        """Calls alone."""
        opening, closing = self._marker(self._form.opening), self._marker(self._form.closing)
        match self._form.kind:
            case CallKind.KEYED:
                return self._repeated(f"{opening} one {closing}", '"\\n"')
            case CallKind.BRACED:
                return self._repeated(f"{opening} one {closing}", "")
            case CallKind.TAGGED | CallKind.XML:
                return self._repeated(f'{opening} "\\n" one "\\n" {closing}', '"\\n"')
            case CallKind.BARE:
                return self._repeated("one", '"; "')
            case CallKind.LISTED:
                return f'{opening} "[" {self._repeated("one", chr(34) + ", " + chr(34))} "]"'
            case CallKind.SEPARATED:
                calls = self._repeated("one", json.dumps("\n") if self._form.is_lined else "")
                return f"{opening} {calls} {closing}"
            case CallKind.PYTHON if self._form.is_lined:
                calls = self._repeated("one", json.dumps("\n"))
                return f'{opening} "\\n"? {calls} "\\n"? {closing}'  # some templates have it on a line
            case CallKind.PYTHON:
                return f'{opening} "[" {self._repeated("one", chr(34) + ", " + chr(34))} "]" {closing}'
            case CallKind.NAMED:
                return self._repeated(f"{opening} one", "")
            case CallKind.HARMONY:
                raise AssertionError("calls in channels have rules of their own")

    def _text_or_calls(self) -> list[str]:
        """Text, and calls behind it, or alone where nothing marks their beginning."""
        if not self._form.opening:
            return [f"start: TEXT | {self._calls()}", r"TEXT: /(\s*[^\s{\[](.|\n)*)?/"]
        opening, text = self._form.opening, r"TEXT: /(.|\n)*/"
        begins = {CallKind.XML: "<function=", CallKind.SEPARATED: separated.CALL[0]}.get(self._form.kind)
        if begins is not None:
            text += rf" & ~/(.|\n)*{begins}(.|\n)*/"  # which is read as a call without its opening, too
        if opening in self._control:
            return [f"start: TEXT ({self._calls()})?", text]
        calls = self._calls().removeprefix(self._marker(opening)).lstrip()
        return [f"start: TEXT | begun {calls}", text, f"begun[lazy]: TEXT {json.dumps(opening)}"]

    def _repeated(self, rule: str, separator: str) -> str:
        return rule if not self._more else f"{rule} ({separator} {rule}){{0,{self._more}}}"

    def _one(self, tool: Tool, index: int) -> str:
        if self._form.kind is CallKind.NAMED:
            return f"{json.dumps(tool.name)} {self._marker('[ARGS]')} args_{index}"
        if self._form.kind is CallKind.SEPARATED:
            return self._separated(tool.name, index)
        head = f'{{"name": {json.dumps(tool.name)}, "{self._form.arguments_key}": '
        return f'{json.dumps(head)} args_{index} "}}"'

    def _separated(self, name: str, index: int) -> str:
        before, behind = separated.around(name, is_fenced=self._form.is_lined)
        head = (separated.CALL[0], before, separated.SEPARATOR, behind)
        tail = (separated.FENCE[1] if self._form.is_lined else "", separated.CALL[1])
        return " ".join([*map(self._marker, head), f"args_{index}", *map(self._marker, tail)])

    def _marker(self, text: str) -> str:
        if text in self._control:
            return f"<[{self._control[text]}]>"
        return json.dumps(text) if text else ""


def _arguments(tool: Tool) -> str:
    """The schema of a tool's arguments, which are an object whatever it says."""
    schema = named_alone(tool.parameters)
    names_type = schema.keys() & {"type", "$ref", "anyOf", "allOf", "oneOf"}
    return _schema(schema if names_type else {"type": "object", **schema}, strict=tool.strict)


def _schema(schema: Mapping[str, object], *, strict: bool) -> str:
    options = {"whitespace_pattern": JSON_WHITE_SPACE, "lenient": not strict}
    return json.dumps({**schema, "x-guidance": options})
