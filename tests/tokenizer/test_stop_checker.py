"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicorn_async.tokenizer import StopChecker

LETTERS = st.text(alphabet="ab<", max_size=40)
STOPS = st.lists(st.text(alphabet="ab<", min_size=1, max_size=5), max_size=4).map(tuple)


def feed_all(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, bool]:
    checker = StopChecker(stops)
    emitted = ""
    for piece in pieces:
        text, stopped = checker.feed(piece)
        emitted += text
        if stopped:
            return emitted, True
    return emitted + checker.flush(), False


def reference(stops: tuple[str, ...], text: str) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(STOPS, LETTERS, st.lists(st.integers(0, 40)))
def test_the_result_does_not_depend_on_the_pieces(stops: tuple[str, ...], text: str, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    assert feed_all(stops, pieces) == reference(stops, text)


@given(STOPS.filter(bool), LETTERS)
def test_no_more_is_held_back_than_may_become_a_stop_string(stops: tuple[str, ...], text: str) -> None:
    checker = StopChecker(stops)
    emitted, stopped = checker.feed(text)
    held = text[len(emitted) :]
    if not stopped:
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_text_passes_unchanged_without_stop_strings() -> None:
    assert StopChecker(()).feed("abc") == ("abc", False)


def test_nothing_comes_after_a_stop_string() -> None:
    checker = StopChecker(("END",))
    assert checker.feed("xEN") == ("x", False)
    assert checker.feed("D yes") == ("", True)
    assert checker.feed("more") == ("", True)
    assert checker.flush() == ""


def test_an_empty_stop_string_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopChecker(("a", ""))
