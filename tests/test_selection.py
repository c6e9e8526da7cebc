"""The part of the tests that a run without `--whole` has."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from tests.selection import check_reasons, left_to_the_whole, left_to_their_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MADE = """
import pytest

def test_always(): ...

@pytest.mark.whole("all of it")
def test_long(): ...

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.whole("sizes between")), 3])
def test_sizes(size): ...

@pytest.mark.combinations("each with each")
@pytest.mark.parametrize("a", [1, 2, pytest.param(3, marks=pytest.mark.whole("a large one"))])
@pytest.mark.parametrize(("b", "c"), [(1, {1}), (1, {2}), (2, {2})])
def test_product(a, b, c): ...
"""
INI = """[pytest]
asyncio_default_fixture_loop_scope = function
markers =
    combinations: reason
    whole: reason
"""
SHORT = {
    "test_always",
    "test_sizes[1]",
    "test_sizes[3]",
    *(f"test_product[{case}]" for case in ("1-c0-1", "2-c2-2", "1-c1-1")),
}


@pytest.fixture
def items_of(pytester: pytest.Pytester) -> Callable[[str], list[pytest.Item]]:
    """The tests of a module with this text."""
    pytester.makeini(INI)
    return pytester.getitems


def kept(items: list[pytest.Item], named: tuple[str, ...] = ()) -> set[str]:
    return {item.name for item in items} - {item.name for item in left_to_the_whole(items, named)}


def test_each_value_occurs_and_what_is_marked_is_left(items_of: Callable[[str], list[pytest.Item]]) -> None:
    assert kept(items_of(MADE)) == SHORT


MIXED = """
import pytest

@pytest.mark.combinations("each with each")
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", [[], "c"])
@pytest.mark.parametrize("c", range(3))
@pytest.mark.parametrize("d", range(2))
def test_pairs(a, b, c, d): ...

@pytest.mark.parametrize("a", range(2))
@pytest.mark.parametrize("b", range(2))
@pytest.mark.parametrize("c", range(2))
def test_all(a, b, c): ...

@pytest.mark.combinations("each with each")
@pytest.mark.parametrize("a", range(2))
@pytest.mark.parametrize(("b", "c"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_tuples(a, b, c): ...
"""


def test_the_whole_has_each_pair_of_values_of_combinations_and_all_of_the_rest(
    items_of: Callable[[str], list[pytest.Item]],
) -> None:
    items = items_of(MIXED)
    left = left_to_their_names(items)
    assert all(item.name.startswith("test_pairs") for item in left)
    assert len(left) >= 36 - 12  # nine would be the fewest

    def pairs(cases: Iterable[pytest.Item]) -> set[object]:
        found = [
            [(name, repr(value)) for name, value in case.callspec.params.items()]
            for case in cases
            if isinstance(case, pytest.Function) and case.name.startswith("test_pairs")
        ]
        return {frozenset(pair) for values in found for pair in combinations(values, 2)}

    assert pairs(item for item in items if item not in left) == pairs(items)
    assert left_to_their_names(items, [next(iter(left)).nodeid.partition("[")[0]]) == set()


def test_what_is_asked_for_by_its_name_runs(items_of: Callable[[str], list[pytest.Item]]) -> None:
    items = items_of(MADE)
    named = next(item.nodeid for item in items if item.name == "test_long")
    assert kept(items, (named,)) == SHORT | {"test_long"}
    assert kept(items, (named.partition("::")[0],)) == SHORT


@pytest.mark.parametrize("mark", ["whole", "combinations", 'whole("")', "whole(1)"])
def test_a_test_is_left_to_the_whole_with_a_reason_only(
    mark: str, items_of: Callable[[str], list[pytest.Item]]
) -> None:
    items = items_of(f"import pytest\n@pytest.mark.{mark}\ndef test_it(): ...\n")
    with pytest.raises(pytest.UsageError, match="test_it: say what it alone shows"):
        check_reasons(items)
