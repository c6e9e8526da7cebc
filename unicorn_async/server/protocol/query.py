"""The fields of a request's query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


def once_each(query: Iterable[tuple[str, str]], lists: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and values; of one that is there twice nobody could say which is meant, but for `lists`.

    Raises:
        ApiError: 400, a name is there twice.
    """
    seen: set[str] = set()
    for name, value in query:
        if name in seen and name not in lists:
            raise ApiError(f"{name[:80]}: is there more than once", code="duplicate_parameter", param=name[:80])
        seen.add(name)
        yield name, value
