"""Which tests a run has: those that cover every behaviour once, or the whole."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from _pytest.python import CallSpec2


def check_reasons(items: Iterable[pytest.Item]) -> None:
    """Refuse a test that is left to the whole run without a word about what it alone shows.

    Raises:
        pytest.UsageError: a marker has no reason.
    """
    for item in items:
        for mark in (*item.iter_markers("whole"), *item.iter_markers("combinations")):
            if not (len(mark.args) == 1 and isinstance(mark.args[0], str) and mark.args[0]):
                raise pytest.UsageError(f"{item.nodeid}: say what it alone shows: {mark.name}(reason)")


def left_to_the_whole(items: Sequence[pytest.Item], named: Iterable[str] = ()) -> set[pytest.Item]:
    """Return the tests that the short run leaves out; never those that were `named` by their ids."""
    ids = tuple(name for name in named if "::" in name)
    left = {item for item in items if item.get_closest_marker("whole") is not None}
    products: dict[object, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if item not in left and isinstance(item, pytest.Function) and item.get_closest_marker("combinations"):
            products[item.function].append(item)
    for cases in products.values():
        left.update(set(cases) - set(each_value_once(cases)))
    return {item for item in left if not item.nodeid.startswith(ids)} if ids else left


def each_value_once(cases: Sequence[pytest.Function]) -> list[pytest.Function]:
    """Return few of a test's cases, in which each value of each parameter occurs."""
    values = {case: _values(case.callspec) for case in cases}
    missing = frozenset(value for case in cases for value in values[case])
    chosen: list[pytest.Function] = []
    while missing:
        chosen.append(max(cases, key=lambda case: len(values[case] & missing)))
        missing -= values[chosen[-1]]
    return chosen


def _values(case: CallSpec2) -> frozenset[tuple[str, Hashable]]:
    """Each parameter with its value, or with the object's number where the value is nothing for a set."""
    return frozenset((name, value if _is_hashable(value) else id(value)) for name, value in case.params.items())


def _is_hashable(value: object) -> bool:
    """Whether a value has a hash; a tuple of lists has the method alone."""
    try:
        hash(value)
    except TypeError:
        return False
    return True
