"""Which tests a run has: each value of a parameter once, or the whole: every pair of values, and what takes long."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence


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
    left = {item for item in items if item.get_closest_marker("whole") is not None}
    left |= _left_of_combinations([item for item in items if item not in left], each_value_once)
    return left - _named(left, named)


def left_to_their_names(items: Sequence[pytest.Item], named: Iterable[str] = ()) -> set[pytest.Item]:
    """Return the tests that the whole run leaves out, too: those that have no pair of values that others have not."""
    left = _left_of_combinations(items, each_pair_once)
    return left - _named(left, named)


def each_value_once(cases: Sequence[pytest.Function]) -> list[pytest.Function]:
    """Return few of a test's cases, in which each value of each parameter occurs."""
    return _cover(cases, _values)


def each_pair_once(cases: Sequence[pytest.Function]) -> list[pytest.Function]:
    """Return few of a test's cases, in which each value of each parameter occurs with each of every other one's.

    Parameters whose values are given together, as tuples, are one.
    """
    return _cover(cases, _pairs)


def _left_of_combinations(
    items: Iterable[pytest.Item], choose: Callable[[Sequence[pytest.Function]], list[pytest.Function]]
) -> set[pytest.Item]:
    products: dict[object, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("combinations"):
            products[item.function].append(item)
    return {case for cases in products.values() for case in set(cases) - set(choose(cases))}


def _named(items: Iterable[pytest.Item], named: Iterable[str]) -> set[pytest.Item]:
    ids = tuple(name for name in named if "::" in name)
    return {item for item in items if item.nodeid.startswith(ids)} if ids else set()


def _cover(
    cases: Sequence[pytest.Function], parts: Callable[[pytest.Function], frozenset[Hashable]]
) -> list[pytest.Function]:
    """Return few cases that have all parts that any has."""
    of_cases = {case: parts(case) for case in cases}
    missing = frozenset(part for found in of_cases.values() for part in found)
    chosen: list[pytest.Function] = []
    while missing:
        chosen.append(max(cases, key=lambda case: len(of_cases[case] & missing)))
        missing -= of_cases[chosen[-1]]
    return chosen


def _values(case: pytest.Function) -> frozenset[tuple[str, Hashable]]:
    """Each parameter with its value, or with the object's number where the value is nothing for a set."""
    params = case.callspec.params.items()
    return frozenset((name, value if _is_hashable(value) else id(value)) for name, value in params)


def _pairs(case: pytest.Function) -> frozenset[Hashable]:
    """Values, given together or alone, and each two of them."""
    together = {name: mark.args[0] for mark in case.iter_markers("parametrize") for name in _names(mark.args[0])}
    groups: dict[object, set[tuple[str, Hashable]]] = defaultdict(set)
    for name, value in _values(case):
        groups[together.get(name, name)].add((name, value))
    values = [frozenset(group) for group in groups.values()]
    return frozenset((*values, *(frozenset(pair) for pair in combinations(values, 2))))


def _names(given: str | Sequence[str]) -> Sequence[str]:
    """The names of the parameters that a mark has values for."""
    return [name.strip() for name in given.split(",")] if isinstance(given, str) else given


def _is_hashable(value: object) -> bool:
    """Whether a value has a hash; a tuple of lists has the method alone."""
    try:
        hash(value)
    except TypeError:
        return False
    return True
