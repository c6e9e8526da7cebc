"""What is counted of steps that overlap."""

from __future__ import annotations

import pytest

from unicorn_async.hybrid.busy import Span
from unicorn_async.hybrid.counters import HybridCounters


def spans(step: int, *times: tuple[float, float]) -> list[Span]:
    return [Span(step, 0, layer, *time) for layer, time in enumerate(times)]


def test_steps_one_after_another_add_up() -> None:
    counters = HybridCounters()
    assert counters.note(spans(0, (0, 1), (2, 4)), spans(0, (1, 2.5)), is_split=False) == 4
    assert counters.note(spans(1, (5, 6)), spans(1, (5.5, 6)), is_split=True) == 1
    assert (counters.whole_steps, counters.split_steps) == (1, 1)
    assert (counters.step_s, counters.near_s, counters.far_s) == (5, 4, 2)
    assert counters.both_s == pytest.approx(0.5 + 0.5)


def test_what_two_steps_share_counts_once() -> None:
    counters = HybridCounters()
    assert counters.note(spans(0, (0, 1), (3, 4)), spans(0, (1, 3)), is_split=True) == 4
    assert counters.note(spans(1, (1, 2.5), (6, 7)), spans(1, (3, 6)), is_split=True) == 3
    assert (counters.step_s, counters.near_s, counters.far_s) == (7, 4.5, 5)
    assert counters.both_s == pytest.approx(1.5 + 1.0)  # the second's model work, and then the first's


def test_a_step_that_ends_before_the_one_before_it_adds_nothing() -> None:
    counters = HybridCounters()
    counters.note(spans(0, (0, 1), (8, 9)), spans(0, (1, 8)), is_split=True)
    assert counters.note(spans(1, (1, 2)), [], is_split=False) == 0
    assert counters.step_s == 9
    assert counters.both_s == 1
