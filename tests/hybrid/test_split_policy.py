"""Which way a step goes, by what earlier ones took."""

from __future__ import annotations

import pytest

from unicorn_async.config import SplitMode
from unicorn_async.hybrid.split_policy import SplitPolicy, StepKind

KIND, OTHER = StepKind.of(8, 1000), StepKind.of(64, 1000)


def run(policy: SplitPolicy, seconds: dict[bool, float], steps: int, kind: StepKind = KIND) -> list[bool]:
    """Let steps take what their way takes; return the ways."""
    ways = []
    for _ in range(steps):
        ways.append(policy.choose(kind))
        policy.observe(kind, seconds[ways[-1]], split=ways[-1])
    return ways


@pytest.mark.parametrize(("mode", "expected"), [(SplitMode.ALWAYS, True), (SplitMode.NEVER, False)])
def test_a_way_that_was_asked_for_is_taken_whatever_it_takes(mode: SplitMode, expected: bool) -> None:
    assert run(SplitPolicy(mode), {expected: 9.0, not expected: 1.0}, 20) == [expected] * 20


@pytest.mark.parametrize("split_is_faster", [False, True])
def test_both_ways_are_tried_and_the_faster_one_is_taken(split_is_faster: bool) -> None:
    ways = run(SplitPolicy(SplitMode.AUTO), {split_is_faster: 1.0, not split_is_faster: 1.2}, 100)
    assert ways[:6].count(True) == 3
    assert ways[6:] == [split_is_faster] * 94


def test_the_slower_way_is_tried_again_some_time_and_may_win() -> None:
    policy = SplitPolicy(SplitMode.AUTO)
    run(policy, {False: 1.0, True: 1.2}, 500)
    ways = run(policy, {False: 1.0, True: 0.1}, 600)
    assert ways.count(True) > 0
    later = run(policy, {False: 1.0, True: 0.1}, 5000)
    assert later[-1] is True


@pytest.mark.parametrize("slow_step", range(12))
@pytest.mark.parametrize("split_is_faster", [False, True])
def test_one_slow_step_moves_nothing(split_is_faster: bool, slow_step: int) -> None:
    policy, seconds = SplitPolicy(SplitMode.AUTO), {split_is_faster: 0.008, not split_is_faster: 0.010}
    run(policy, seconds, slow_step)
    way = policy.choose(KIND)
    policy.observe(KIND, 10.0, split=way)
    assert run(policy, seconds, 1500)[12:].count(split_is_faster) >= 1500 - 12 - 2 * 3


def test_slow_steps_that_keep_a_way_from_being_taken_do_so_until_it_is_tried_again() -> None:
    policy, seconds = SplitPolicy(SplitMode.AUTO), {False: 0.010, True: 0.008}
    run(policy, seconds, 20)
    for _ in range(3):
        policy.observe(KIND, 10.0, split=True)
    assert run(policy, seconds, 600)[-1] is True


def test_kinds_of_steps_are_learnt_apart() -> None:
    policy = SplitPolicy(SplitMode.AUTO)
    assert run(policy, {False: 1.0, True: 2.0}, 20)[-1] is False
    assert run(policy, {False: 2.0, True: 1.0}, 20, OTHER)[-1] is True
    assert run(policy, {False: 1.0, True: 2.0}, 20)[-1] is False


def test_what_is_known_can_be_shown() -> None:
    policy = SplitPolicy(SplitMode.AUTO)
    policy.observe(KIND, 0.004, split=False)
    assert policy.preferences() == [{"tokens": 8, "keys_below": 1024, "whole_ms": 4.0, "split_ms": None, "way": None}]


@pytest.mark.parametrize(
    ("mode", "way"), [(SplitMode.AUTO, "split"), (SplitMode.ALWAYS, "split"), (SplitMode.NEVER, "whole")]
)
def test_the_way_that_is_taken_is_shown(mode: SplitMode, way: str) -> None:
    policy = SplitPolicy(mode)
    run(policy, {False: 1.0, True: 0.5}, 20)
    (shown,) = policy.preferences()
    assert shown["way"] == way == ("split" if policy.choose(KIND) else "whole")
