"""Patterns of module names in an adapter's configuration, as hostile input.

PEFT takes them for regular expressions that match the end of a module's name, from a dot on. A file could hold one that
takes years, so only the part of the language is accepted that people use here: names, `.`, `\\.`, `\\d`, classes, `*`
and `+` after one of these, groups of alternatives, `^` and `$` at the ends.
"""

from __future__ import annotations

import re

from unicorn_async.errors import UnsupportedModelError

MAX_PATTERN_LENGTH = 256
_MAX_CHOICES = 2  # repetitions and groups of one pattern: the time for a match grows with the power of their number
_TOKEN = re.compile(
    r"(?P<one>[A-Za-z0-9_\-]|\\[.\-_d]|\.|\[[A-Za-z0-9_\-]+\])(?P<many>[*+]?)"
    r"|(?P<group>\((?:\?:)?[A-Za-z0-9_.\-|]+\))"
)


class ModulePattern:
    """Matches modules by the end of their names.

    Raises:
        UnsupportedModelError: `pattern` is longer than MAX_PATTERN_LENGTH, or uses more of the language; `where` names
            the place in errors.
    """

    def __init__(self, pattern: str, where: str) -> None:
        if not 0 < len(pattern) <= MAX_PATTERN_LENGTH:
            raise UnsupportedModelError(
                f"{where}: a pattern of {len(pattern)} characters, 1 to {MAX_PATTERN_LENGTH} are supported"
            )
        body = pattern.removeprefix("^").removesuffix("$")
        position = choices = 0
        while position < len(body):
            token = _TOKEN.match(body, position)
            if token is None:
                raise UnsupportedModelError(f"{where}: pattern {pattern!r}: not supported from {body[position:]!r} on")
            choices += bool(token["many"] or token["group"])
            position = token.end()
        if choices > _MAX_CHOICES:
            raise UnsupportedModelError(
                f"{where}: pattern {pattern!r} has {choices} repetitions and groups, {_MAX_CHOICES} are supported"
            )
        self.has_choices = choices > 0
        self._matches = self._compiled(pattern, where)

    def matches(self, module: str) -> bool:
        """Whether a module's name ends, after a dot or from its start, as the pattern says."""
        return self._matches.match(module) is not None

    @staticmethod
    def _compiled(pattern: str, where: str) -> re.Pattern[str]:
        try:
            return re.compile(rf"(.*\.)?({pattern})$")
        except re.error as exc:
            raise UnsupportedModelError(f"{where}: pattern {pattern!r}: {exc}") from exc
