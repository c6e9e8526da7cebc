"""Control tokens in text, and how a user's text is kept from becoming one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from unicorn_async.tokenizer.facts import ControlToken

_PRIVATE_USE = range(0xE000, 0xF900)


@dataclass(frozen=True, slots=True)
class ControlMatch:
    """A stretch of plain text, or one control token."""

    text: str
    token_id: int | None


class ControlStrings:
    """The strings that stand for control tokens; those of one character are left alone."""

    def __init__(self, strings: Iterable[str]) -> None:
        ordered = sorted({text for text in strings if len(text) > 1}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._starts = re.compile("|".join(sorted({re.escape(text[0]) for text in ordered})) or r"(?!)")

    def may_begin_in(self, text: str) -> bool:
        """Whether a control token may begin somewhere in the text."""
        return self._starts.search(text) is not None

    def found_in(self, text: str) -> list[str]:
        """Return the control tokens in the text, in order."""
        return self._pattern.findall(text)

    def break_whole(self, text: str, mark: str) -> str:
        """Put `mark` behind the first character of every control token in the text, so that it is none."""
        return self._pattern.sub(lambda match: match[0][0] + mark + match[0][1:], text)

    def break_starts(self, text: str, mark: str) -> str:
        """Put `mark` behind every character that may begin a control token, so that none can arise from parts."""
        return self._starts.sub(lambda match: match[0] + mark, text)


class ControlTokens:
    """The control tokens by id; strings of one character are left alone."""

    def __init__(self, tokens: Mapping[int, ControlToken]) -> None:
        self._tokens = {token.content: (token_id, token) for token_id, token in tokens.items()}
        self._texts = {token_id: text for text, (token_id, _) in self._tokens.items() if len(text) > 1}
        ordered = sorted(self._texts.values(), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")

    def text_of(self, token_id: int) -> str | None:
        """Return the string of a control token."""
        return self._texts.get(token_id)

    def split(self, text: str) -> Iterator[ControlMatch]:
        """Cut the text at its control tokens; those that swallow the space beside them do so."""
        start, strip_next = 0, False
        for match in self._pattern.finditer(text):
            token_id, token = self._tokens[match[0]]
            plain = text[start : match.start()]
            plain = plain.lstrip() if strip_next else plain
            plain = plain.rstrip() if token.lstrip else plain
            if plain:
                yield ControlMatch(plain, None)
            yield ControlMatch(match[0], token_id)
            start, strip_next = match.end(), token.rstrip
        plain = text[start:].lstrip() if strip_next else text[start:]
        if plain:
            yield ControlMatch(plain, None)


def unused_mark(texts: Iterable[str]) -> str:
    """Return a private-use character that occurs in none of the texts.

    Raises:
        ValueError: they use all of them.
    """
    used: set[str] = set()
    for text in texts:
        used.update(text)
    for code in _PRIVATE_USE:
        if chr(code) not in used:
            return chr(code)
    raise ValueError("the texts use every private-use character")
