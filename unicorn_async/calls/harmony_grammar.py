"""Grammar rules of answers in the Harmony format: thoughts may come first, then a call, or an answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from unicorn_async.calls.harmony import APART, CHANNEL, CONSTRAIN, END, FUNCTIONS, MESSAGE, START
from unicorn_async.calls.tool import ToolMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unicorn_async.calls.tool import Tool, ToolUse


class HarmonyRules:
    """Makes the lines of a grammar; `control` has the marks that are control tokens, `arguments` the rule of a tool's.

    An answer calls one tool at most: the end of a call ends it.
    """

    def __init__(self, control: Mapping[str, int], arguments: Callable[[Tool], str]) -> None:
        self._control = control
        self._arguments = arguments

    def lines(self, use: ToolUse, answer: str | None) -> list[str]:
        """Return all lines; `answer` is the rule of what is said in the end, None = any text."""
        said = "TEXT" if answer is None else "answer"
        final = f'{self._mark(CHANNEL)} "final" {self._mark(MESSAGE)} {said}'
        after = f'{self._mark(END)} {self._mark(START)} "assistant"'
        rules = [
            f'thoughts: {self._mark(CHANNEL)} "analysis" {self._mark(MESSAGE)} TEXT {after}',
            r"TEXT: /(.|\n)*/",
            *([] if answer is None else [f"answer: {answer}"]),
        ]
        if not use.callable:
            return [f"start: thoughts? {final}", *rules]
        rules += [
            f'preamble: {self._mark(CHANNEL)} "commentary" {self._mark(MESSAGE)} TEXT {after}',
            "called: " + " | ".join(f"called_{index}" for index in range(len(use.callable))),
            *(self._called(tool, index) for index, tool in enumerate(use.callable)),
        ]
        calls = "preamble? called"
        return [f"start: thoughts? {calls if use.mode is ToolMode.REQUIRED else f'({calls} | {final})'}", *rules]

    def _called(self, tool: Tool, index: int) -> str:
        head = json.dumps(f"commentary to={FUNCTIONS}{tool.name} ")
        return (
            f'called_{index}: {self._mark(CHANNEL)} {head} {self._mark(CONSTRAIN)} "json" {self._mark(MESSAGE)} '
            f"args_{index}\nargs_{index}: {self._arguments(tool)}"
        )

    def _mark(self, mark: str) -> str:
        return f"<[{self._control[mark]}]>" if mark in self._control else json.dumps(mark.removeprefix(APART))
