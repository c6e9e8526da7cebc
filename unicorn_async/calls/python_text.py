"""Python's way to write values, as JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from unicorn_async.calls.argument_types import TEXT_ALONE, argument_json, is_json, string_part

if TYPE_CHECKING:
    from re import Match

_WORDS = {"True": "true", "False": "false", "None": "null", "(": "[", ")": "]"}
# Each string goes to its end, or to that of the text, so that this takes a time in proportion to the text.
_TOKEN = re.compile(
    r""""(?:\\.|[^"\\])*(?:"|\\?\Z)|'(?:\\.|[^'\\])*(?:'|\\?\Z)|[A-Za-z_]\w*|[()]|,(?=\s{0,64}[\])}])""", re.DOTALL
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_NUM_DIGITS = {"x": 2, "u": 4, "U": 8}
_LAST = 0x10FFFF


def unescaped(text: str) -> str:
    """Return what the inside of a string literal says: escapes of Python, and of JSON."""
    return _ESCAPE.sub(_char, text)


def num_escaped(text: str) -> int:
    """Return how many characters belong to the escape that a text begins with; 0 if more has to come to tell."""
    digits = _NUM_DIGITS.get(text[1:2], 0)
    found = _ESCAPE.match(text)
    is_whole = found is not None and (not digits or len(text) >= 2 + digits or found.end() > 2)
    is_broken = re.fullmatch("[0-9a-fA-F]*", text[2 : 2 + digits]) is None
    return found.end() if found is not None and (is_whole or is_broken) else 0


def python_argument(text: str, types: frozenset[str]) -> str:
    """Return as JSON a value that stands in a call without quotes around it, where one of these types belongs."""
    if types != TEXT_ALONE:
        translated = _TOKEN.sub(_translated, text)
        if is_json(translated):
            return argument_json(translated, types)
    return argument_json(text, types)


def _translated(found: Match[str]) -> str:
    token = found[0]
    if token[0] in "\"'":
        is_closed = len(token) > 1 and token[-1] == token[0]
        return f'"{string_part(unescaped(token[1:-1]))}"' if is_closed else token
    return "" if token == "," else _WORDS.get(token, token)


def _char(found: Match[str]) -> str:
    escape = found[1]
    if len(escape) == 1:
        return _ESCAPED.get(escape, escape if escape in "\"'\\/" else found[0])
    number = int(escape[1:], 16)
    return chr(number) if number <= _LAST else found[0]
