"""Texts for strangers, and texts from strangers.

Errors name files, and where those lie on the disk is the operator's affair. Names in files are whatever their writers
put there, and terminals obey some of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Of a path that begins at the root, or at "~", "." or "..": all but its last part.
_FOLDERS = re.compile(r"(?<![\w./~])(?:~|\.{1,2})?/(?:[^/\s'\":;,()\[\]]+/)+")
_IN_HUB = re.compile(r"\bmodels--([\w.-]+)/(?:snapshots/\w+|blobs)(?![\w.-])")


def printable(text: str) -> str:
    """Return a line without what could move a terminal's cursor, or can't be written: a question mark for each."""
    return "".join(char if char.isprintable() else "?" for char in text)


class PublicText:
    """Takes the operator's folders out of texts: what is left of a path is a model's name and a file's name in it.

    `places` are known paths and what to say in place of each, "" for nothing. Other paths lose all but their last part,
    as far as they have no spaces.
    """

    def __init__(self, places: Iterable[tuple[Path, str]] = ()) -> None:
        self._names: dict[str, str] = {}
        for path, name in places:
            for spelling in (path, path.absolute(), path.resolve()):
                if len(spelling.parts) > 1:  # a single word, or the root, may be a part of anything
                    self._names.setdefault(str(spelling), name)
        longest_first = sorted(self._names, key=len, reverse=True)
        paths = "|".join(re.escape(path) for path in longest_first)
        self._paths = re.compile(rf"(?<![\w./~])({paths})(/|(?![\w-]|\.\w))") if paths else None

    def of(self, text: str) -> str:
        """Return a text without the folders."""
        if self._paths is not None:
            text = self._paths.sub(self._named, text)
        text = _IN_HUB.sub(lambda found: found[1].replace("--", "/", 1), text)
        return _FOLDERS.sub("", text)

    def _named(self, found: re.Match[str]) -> str:
        path, slash = found.groups()
        name = self._names[path]
        if slash:
            return f"{name}/" if name else ""
        return name or path.rpartition("/")[2]
