"""How large steps beside decoding sequences may be, by what earlier steps took."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from unicorn_async.scheduler.step_budget import StepBudget
from unicorn_async.step.buckets import bucket_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = bucket_sizes(512)
BLOCK = 16


def padded(num_tokens: int) -> int:
    return next(size for size in SIZES if size >= num_tokens)


def run(budget: StepBudget, device_s: Callable[[int], float], *, num_decodes: int, steps: int) -> list[int]:
    """Run steps that are as large as the budget allows, on a device that takes so long for a size; return the sizes."""
    sizes = []
    for _ in range(steps):
        num_tokens = num_decodes + max(budget.room_beside(num_decodes), BLOCK)
        sizes.append(padded(num_tokens))
        budget.observe(num_decodes, num_tokens, device_s(sizes[-1]))
    return sizes


def test_there_is_no_room_before_the_first_prompt() -> None:
    budget = StepBudget(SIZES, 0.1)
    budget.observe(4, 4, 0.005)
    assert budget.room_beside(4) == 0


def test_a_prompt_that_was_computed_alone_says_how_much_fits_beside_decodes() -> None:
    budget = StepBudget(SIZES, 0.1)
    budget.observe(0, 512, 0.4)
    assert budget.room_beside(8) == 128 - 8


def test_a_step_is_one_size_larger_than_one_that_was_fast() -> None:
    budget = StepBudget(SIZES, 0.1)
    budget.observe(0, 60, 0.001)
    assert budget.room_beside(1) == 96 - 1
    assert run(budget, lambda size: 1e-5 * size, num_decodes=1, steps=7) == [96, 128, 192, 256, 384, 512, 512]


@pytest.mark.parametrize("num_decodes", [1, 8, 30])
@pytest.mark.parametrize("fixed_s", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("per_token_s", [1e-5, 3e-4, 2e-3])
def test_steps_find_the_largest_size_within_the_limit(num_decodes: int, fixed_s: float, per_token_s: float) -> None:
    def device_s(size: int) -> float:
        return fixed_s + per_token_s * size

    budget = StepBudget(SIZES, 0.1)
    budget.observe(num_decodes, num_decodes, device_s(padded(num_decodes)))
    sizes = run(budget, device_s, num_decodes=num_decodes, steps=400)[20:]
    assert budget.limit_s == max(0.1, 2 * device_s(padded(num_decodes)))
    least = padded(num_decodes + BLOCK)
    largest = max(least, max(size for size in SIZES if device_s(size) <= budget.limit_s))
    assert sorted(sizes)[len(sizes) // 2] == largest
    too_large = [size for size in sizes if size > largest]
    assert len(too_large) <= len(sizes) // 12
    assert max(too_large, default=largest) <= 1.5 * largest  # the next size


def test_a_step_of_which_large_kernels_cost_more_is_tried_seldom() -> None:
    budget = StepBudget(SIZES, 0.1)
    sizes = run(budget, lambda size: 0.04 if size <= 64 else 0.003 * size, num_decodes=4, steps=200)
    assert set(sizes[5:]) == {64, 96}
    assert sizes.count(96) <= 200 // 12


def test_a_size_that_is_always_too_slow_is_tried_ever_more_seldom() -> None:
    budget = StepBudget(SIZES, 0.1)
    sizes = run(budget, lambda size: 0.0015 * size, num_decodes=4, steps=2000)
    places = [place for place, size in enumerate(sizes) if size == 96]
    assert len(places) <= 12
    assert places[-1] - places[-2] >= 512


def test_a_size_that_was_fast_again_is_tried_soon_after_the_next_slow_step() -> None:
    budget = StepBudget(SIZES, 0.1)
    run(budget, lambda size: 0.0015 * size, num_decodes=4, steps=2000)
    run(budget, lambda size: 0.0003 * size, num_decodes=4, steps=1100)
    sizes = run(budget, lambda size: 0.0015 * size, num_decodes=4, steps=60)
    assert sizes.count(96) >= 2


@pytest.mark.parametrize(("decode_s", "limit_s"), [(0.001, 0.02), (0.006, 0.02), (0.05, 0.15), (0.4, 1.2)])
def test_without_a_limit_of_its_own_the_device_decides(decode_s: float, limit_s: float) -> None:
    budget = StepBudget(SIZES)
    assert budget.limit_s == 0.02
    budget.observe(4, 4, decode_s)
    assert budget.limit_s == pytest.approx(limit_s)
    sizes = run(budget, lambda size: decode_s + 1e-3 * size, num_decodes=4, steps=60)
    assert sorted(sizes)[len(sizes) // 2] <= max((limit_s - decode_s) / 1e-3 + 1e-6, 24)


def test_a_single_slow_step_changes_nothing() -> None:
    budget = StepBudget(SIZES, 0.1)
    run(budget, lambda size: 1e-4 * size, num_decodes=1, steps=20)
    for _ in range(3):
        budget.observe(1, 512, 9.0)
        assert run(budget, lambda size: 1e-4 * size, num_decodes=1, steps=5) == [512] * 5


def test_two_slow_steps_in_a_row_keep_prompts_small_for_a_while() -> None:
    budget = StepBudget(SIZES, 0.1)
    run(budget, lambda size: 1e-4 * size, num_decodes=1, steps=20)
    for _ in range(2):
        budget.observe(1, 512, 9.0)
    sizes = run(budget, lambda size: 1e-4 * size, num_decodes=1, steps=40)
    assert sizes[0] == padded(1 + BLOCK)
    assert sizes[:20].count(384) > 5
    assert sizes[-1] == 512


def test_steps_shrink_when_they_begin_to_take_longer() -> None:
    budget = StepBudget(SIZES, 0.1)
    assert run(budget, lambda size: 1e-4 * size, num_decodes=1, steps=20)[-1] == 512
    sizes = run(budget, lambda size: 4e-4 * size, num_decodes=1, steps=100)
    assert sizes[:3] == [512, 512, 192]  # 250 by its time
    assert sorted(sizes)[50] == 192


def test_a_single_slow_step_without_prompts_counts_by_half() -> None:
    budget = StepBudget(SIZES, 0.1)
    budget.observe(4, 4, 0.1)
    assert budget.limit_s == pytest.approx(2 * 0.1)
    budget.observe(4, 4, 0.5)
    assert budget.limit_s == pytest.approx(2 * 0.3)
    budget.observe(4, 4, 0.1)
    assert budget.limit_s == pytest.approx(2 * 0.2)


@pytest.mark.parametrize("seed", range(20))
def test_there_is_never_more_room_than_the_largest_size_leaves(seed: int) -> None:
    rng = Random(seed)
    budget = StepBudget(SIZES, 0.1)
    for _ in range(200):
        num_decodes = rng.randint(1, 512)
        seconds = rng.choice((0.0, 1e-6, 0.05, rng.random(), 100.0))
        budget.observe(rng.choice((0, num_decodes)), rng.randint(num_decodes, 512), seconds)
        assert 0 <= budget.room_beside(num_decodes) <= 512 - num_decodes
