"""The environment that chat templates run in: no access to Python, and bounded time and size."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from unicorn_async.errors import RequestError
from unicorn_async.tokenizer.template_limits import MAX_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jinja2 import Template
    from jinja2.parser import Parser
    from jinja2.runtime import Context

MAX_SOURCE_CHARS = 1 << 20
MAX_TEXT_CHARS = 1 << 24
_MAX_INT_BITS = 1 << 12
_MAX_ITERATIONS = 2_000_000
_WIDE_FIELD = re.compile(r"%[^%a-zA-Z]*(\d{4}|\*)")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, set up as chat templates expect it, with limits on loops, time and the size of values.

    `start` sets the limits anew; one rendering at a time.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock])
        self._deadline = 0.0
        self._iterations_left = 0
        del self.filters["center"], self.globals["lipsum"]
        self.filters |= {"tojson": _to_json, "_counted": self._counted, "_bounded": self._bounded}
        format_filter = self.filters["format"]
        self.filters["format"] = lambda text, *args, **kwargs: format_filter(_checked_format(text), *args, **kwargs)
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def start(self) -> None:
        """Begin a rendering: set the limits."""
        self._deadline = time.thread_time() + MAX_SECONDS
        self._iterations_left = _MAX_ITERATIONS

    def template(self, source: str) -> Template:
        """Return a template whose loops and concatenations are limited."""
        if len(source) > MAX_SOURCE_CHARS:
            raise SecurityError(f"a template of {len(source)} characters, at most {MAX_SOURCE_CHARS}")
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(loop.iter, "_counted")
        for assign in list(tree.find_all(nodes.Assign)):
            assign.node = _filtered(assign.node, "_bounded")
        for assign_block in list(tree.find_all(nodes.AssignBlock)):
            inner = assign_block.filter or nodes.Filter(None, "string", [], [], None, None)
            assign_block.filter = nodes.Filter(inner, "_bounded", [], [], None, None)
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def call(self, __context: Context, __obj: object, *args: object, **kwargs: object) -> object:
        """Call a function of the template, within the limits."""
        self._check_time()
        if any(isinstance(arg, int) and abs(arg) > MAX_TEXT_CHARS for arg in args):
            raise SecurityError("a number beyond the limits in a call")
        return self._bounded(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Apply an operator, within the limits."""
        if operator == "**" and isinstance(right, int) and abs(right) > 64:
            raise SecurityError(f"exponent {right} is beyond the limits")
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                    self._check_size(len(sequence) * count)
        if operator == "%" and isinstance(left, str):
            _checked_format(left)
        return self._bounded(super().call_binop(context, operator, left, right))

    def _counted(self, iterable: Iterable[object]) -> Iterator[object]:
        for item in iterable:
            self._iterations_left -= 1
            if self._iterations_left < 0:
                raise SecurityError(f"more than {_MAX_ITERATIONS} iterations")
            self._check_time()
            yield item

    def _bounded(self, value: object) -> object:
        if isinstance(value, str | list | tuple):
            self._check_size(len(value))
        elif isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
            raise SecurityError(f"a number of {value.bit_length()} bits")
        return value

    def _check_size(self, size: int) -> None:
        if size > MAX_TEXT_CHARS:
            raise SecurityError(f"a value of {size} characters or items, at most {MAX_TEXT_CHARS}")

    def _check_time(self) -> None:
        if time.thread_time() > self._deadline:
            raise SecurityError(f"rendering took more than {MAX_SECONDS:g} s")


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's part for training; its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    result = nodes.Filter(node, name, [], [], None, None)
    result.set_lineno(node.lineno)
    return result


def _checked_format(text: object) -> object:
    if isinstance(text, str) and _WIDE_FIELD.search(text):
        raise SecurityError("a format with a very wide field")
    return text


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML's escapes, which Jinja's own filter would add."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise RequestError(f"the model's chat template refuses the conversation: {message}")


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
