"""Arrays of hundreds of thousands of short strings, checked at once and made into strings when they are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from collections.abc import Iterator

SEPARATOR = "\0" * 8


class PlainStrings(Sequence[str]):
    """Strings without a NUL, most of them short; `parts` hold them as UTF-8, each behind eight NULs.

    To make them takes as long as to read them: who wants more than one makes a tuple of it.
    """

    def __init__(self, parts: tuple[bytes, ...], count: int) -> None:
        self._parts = parts
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for part in self._parts:
            yield from part.decode().split(SEPARATOR)[1:]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return tuple(self)[index]
