"""Runs are cut so that the driver ends none of them, and cut again where it does."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.npu.builds import write_build
from tests.npu.run_waits import runs_started
from tests.npu.steps import Query, Step
from tests.npu.test_attention import HEADS, MIXED, opened
from unicorn_async.errors import NpuTimeoutError
from unicorn_async.npu.attention import NpuOptions
from unicorn_async.npu.geometry import NPU1, HeadLayout
from unicorn_async.npu.pace import FEW_TASKS, RunLoad, RunPace, computing_s, num_tasks, pushing_s
from unicorn_async.npu.step import halves, prepare_step
from unicorn_async.npu.work import AttentionHeads, Item, SequenceWork

if TYPE_CHECKING:
    from pathlib import Path

    from tests.npu.fake_xrt import Npu
    from tests.npu.machine import Machine
    from unicorn_async.npu.attention import AttentionService
    from unicorn_async.npu.context import Context
    from unicorn_async.npu.part import PreparedPart

PROMPT = [Query(200, 200)] * 4
MOST_BUFFERS = 30  # that a team takes for the prompts
PARAMETERS = "sys/module/amdxdna/parameters"


def test_an_items_time_is_its_products_and_its_tasks() -> None:
    item = Item(0, 0, num_queries=3, position=0, base=0, num_chunks=100, runs=((0, 8192),) * 100)
    # 3 queries of 2 heads are 6 rows, a strip of 4 for each core; K and V of a chunk are 32 keys of 64 dimensions each.
    assert computing_s(HEADS, item) == pytest.approx(2 * 4 * 32 * 64 * 100 / 10e9)
    # 101 buffers are read by 34 tasks, and one task writes.
    assert pushing_s(item) == pytest.approx(35 * 3050e-9)


def test_the_guess_bounds_the_team_with_the_most_to_do() -> None:
    items = [Item(0, 0, 16, 0, 0, chunks, ((0, 8192 * chunks),)) for chunks in (3, 3, 2)]
    chunk = 2 * 16 * 32 * 64 / 10e9
    pushes = 3 * 2 * 3050e-9
    assert RunLoad.of(HEADS, items).seconds == pytest.approx(8 * chunk / NPU1.num_teams + 3 * chunk + pushes)


@pytest.mark.parametrize(("context", "num_parts"), [(4096, 1), (131_072, 9)])
def test_a_long_prompt_is_cut_into_runs_of_half_a_second(tmp_path: Path, context: int, num_parts: int) -> None:
    heads = AttentionHeads(HeadLayout(NPU1, 128), 32, 8, 64)
    build = write_build(tmp_path, NPU1, 128)
    step = prepare_step(
        build,
        heads,
        [SequenceWork(0, 512, context, range(context // 64))],
        num_tokens=512,
        num_blocks=context // 64,
        window=0,
        soft_cap=0.0,
        items_per_run=256,
        instruction_bytes=1 << 20,
        tasks_per_run=1 << 14,
        run_s=0.5,
    )
    assert step.num_items == 256
    assert max(part.guess_s for part in step.parts) <= 0.5
    assert all(part.guess_s == RunLoad.of(heads, part.items).seconds for part in step.parts)
    assert len(step.parts) == num_parts  # one, by their number, would take more than 3 s with the longer context


@pytest.mark.parametrize("scattered", [False, True])
def test_a_run_has_few_tasks_of_the_controller_or_a_single_item(tmp_path: Path, scattered: bool) -> None:
    heads = AttentionHeads(HeadLayout(NPU1, 128), 32, 8, 64)
    stride = 2 if scattered else 1
    step = prepare_step(
        write_build(tmp_path, NPU1, 128),
        heads,
        [SequenceWork(0, 64, 4096, range(0, 64 * stride, stride))],
        num_tokens=64,
        num_blocks=64 * stride,
        window=0,
        soft_cap=0.0,
        items_per_run=256,
        instruction_bytes=1 << 20,
        tasks_per_run=FEW_TASKS,
        run_s=0.5,
    )
    # An item reads its packet and 64 blocks in 22 tasks where these are scattered, else all in one; one more writes.
    counts = [sum(map(num_tasks, part.items)) for part in step.parts]
    assert counts == ([253, 253, 230] if scattered else [64])
    assert step.num_items == 32


def test_an_item_that_is_too_long_by_itself_is_a_run_by_itself(tmp_path: Path) -> None:
    step = prepare_step(
        write_build(tmp_path, NPU1, 64),
        HEADS,
        [SequenceWork(0, 64, 512, range(8))],
        num_tokens=64,
        num_blocks=8,
        window=0,
        soft_cap=0.0,
        items_per_run=256,
        instruction_bytes=1 << 20,
        tasks_per_run=1 << 14,
        run_s=1e-9,
    )
    assert [len(part.items) for part in step.parts] == [1] * step.num_items


async def test_a_prompt_that_the_driver_would_end_in_one_run_passes_in_several(context: Context, npu: Npu) -> None:
    step, npu.run_limit_s = Step(HEADS, PROMPT), 1e-3
    npu.seconds_per_buffer = 1.2e-3 / MOST_BUFFERS
    for limit_s, num_timeouts in ((1e-3, 0), (2.0, 1)):
        context.device.run_limit_s = limit_s
        async with opened(context) as attention:
            step.check(await step.run(attention))
            assert npu.timeouts == attention.counts.recoveries == num_timeouts


async def test_a_prompt_on_an_npu_far_slower_than_guessed_is_halved_and_later_ones_are_short(
    context: Context, npu: Npu
) -> None:
    step = Step(HEADS, PROMPT)
    context.device.run_limit_s = npu.run_limit_s = 0.02
    async with opened(context) as attention:
        (part,) = step.prepare(attention).parts
        npu.seconds_per_buffer = 1.3 * 0.02 / MOST_BUFFERS
        step.check(await step.run(attention))
        assert npu.timeouts == attention.counts.recoveries == 1
        assert attention.pace.run_s == longest_half_s(attention, part)
        assert attention.counts.runs == 2  # its halves, which are not cut once more
        step.check(await step.run(attention))
        assert npu.timeouts == 1


async def test_a_hang_of_a_short_run_makes_no_later_one_shorter(context: Context, npu: Npu) -> None:
    step = Step(HEADS, [Query(40)])
    async with opened(context) as attention:
        npu.faults = deque(["timeout"])
        step.check(await step.run(attention))
        assert attention.counts.recoveries == 1
        assert attention.pace.run_s == RunPace(2.0).run_s


def longest_half_s(attention: AttentionService, part: PreparedPart) -> float:
    return max(
        RunLoad.of(HEADS, half.items).seconds for half in halves(attention._context.build, HEADS, part, is_shared=False)
    )


def guessed(guess_s: float) -> PreparedPart:
    """A part of which the pace asks its guess alone."""
    return cast("PreparedPart", SimpleNamespace(guess_s=guess_s))


@pytest.mark.parametrize(
    ("guess_s", "num_good", "run_s"),
    [(0.02, 7, 0.01), (0.02, 8, 0.02), (0.02, 16, 0.04), (0.02, 1000, 0.32), (0.4, 48, 0.5), (0.001, 1000, 0.01)],
)
def test_runs_grow_again_behind_good_ones_of_about_their_size(guess_s: float, num_good: int, run_s: float) -> None:
    pace = RunPace(2.0)
    pace.timed_out(guessed(0.02), 0.01)
    for _ in range(num_good):
        pace.completed(guessed(guess_s))
    assert pace.run_s == run_s


@pytest.mark.parametrize(("guess_s", "half_s"), [(0.4, 0.2), (0.5, 0.25)])
def test_runs_that_time_out_once_they_have_grown_grow_later(guess_s: float, half_s: float) -> None:
    pace, part = RunPace(2.0), guessed(guess_s)
    for num_wanted in (8, 32, 128):
        pace.timed_out(part, half_s)
        assert pace.run_s == half_s
        for _ in range(num_wanted - 1):
            pace.completed(part)
        assert pace.run_s == half_s
        pace.completed(part)
        assert pace.run_s == guess_s


def test_a_part_and_its_halves_that_time_out_one_after_the_other_count_as_one() -> None:
    pace = RunPace(2.0)
    for guess_s in (0.4, 0.2, 0.1):
        pace.timed_out(guessed(guess_s), guess_s / 2)
    for _ in range(8):
        pace.completed(guessed(0.05))
    assert pace.run_s == 0.1


def test_the_halves_of_a_part_have_guesses_of_their_own(tmp_path: Path) -> None:
    heads, build = AttentionHeads(HeadLayout(NPU1, 128), 32, 8, 64), write_build(tmp_path, NPU1, 128)
    step = prepare_step(
        build,
        heads,
        [SequenceWork(0, 64, 32_768, range(512))],
        num_tokens=64,
        num_blocks=512,
        window=0,
        soft_cap=0.0,
        items_per_run=256,
        instruction_bytes=1 << 20,
        tasks_per_run=1 << 14,
        run_s=0.5,
    )
    (part,) = step.parts
    for half in halves(build, heads, part, is_shared=False):
        assert half.guess_s == RunLoad.of(heads, half.items).seconds > 1.1 * part.guess_s / 2


async def test_layers_that_share_a_step_time_out_once(context: Context, npu: Npu) -> None:
    step = Step(HEADS, PROMPT)
    async with opened(context) as attention:
        cache, prepared = step.fill(attention), step.prepare(attention)
        npu.faults = deque(["timeout"])
        for _ in range(3):
            out = step.poisoned()
            await attention.submit(prepared, q=step.q, cache=cache, out=out)
            step.check(out)
        assert attention.counts.recoveries == 1 and attention.counts.runs == 6
        cache.close()


async def test_runs_that_time_out_together_are_halved_once(context: Context, npu: Npu) -> None:
    step = Step(HEADS, MIXED)
    async with opened(context, options=NpuOptions(items_per_run=8)) as attention:
        wanted_s = min(longest_half_s(attention, part) for part in step.prepare(attention).parts[:2])
        attention.pace._shortest_s = 0.0
        npu.faults = deque(["timeout", "timeout"])
        step.check(await step.run(attention))
        assert attention.pace.run_s == wanted_s


async def test_a_run_that_the_end_of_another_takes_along_may_be_too_long_itself(context: Context, npu: Npu) -> None:
    steps = [Step(HEADS, PROMPT, seed=seed) for seed in range(2)]
    context.device.run_limit_s = npu.run_limit_s = 0.02
    async with opened(context) as attention:
        npu.seconds_per_buffer = 1.3 * 0.02 / MOST_BUFFERS
        npu.hold.clear()
        calls = [asyncio.create_task(step.run(attention)) for step in steps]
        await runs_started(npu, len(steps))
        npu.hold.set()
        for step, found in zip(steps, await asyncio.gather(*calls), strict=True):
            step.check(found)


async def test_how_to_reset_the_npu_is_told_when_an_eighth_fails_in_new_contexts_too(
    context: Context, npu: Npu
) -> None:
    step, npu.max_contexts = Step(HEADS, MIXED), 1
    async with opened(context) as attention:
        npu.faults = deque(["timeout"] * 5)
        with pytest.raises(NpuTimeoutError, match=r"ended a run that took too long; new contexts .*remove.*rescan"):
            await step.run(attention)
        assert attention.counts.recoveries == 4 and not npu.faults  # a whole one, a half, a quarter, an eighth twice
        with pytest.raises(NpuTimeoutError, match="rescan"):
            await step.run(attention)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 60.0),
        ({"tdr_timeout_ms": "2000"}, 2.0),
        ({"tdr_timeout_ms": ""}, 2.0),
        ({"tdr_timeout_ms": "500", "timeout_in_sec": "7"}, 0.5),
        ({"timeout_in_sec": "7"}, 7.0),
        ({"timeout_in_sec": "0"}, None),
        ({"tdr_timeout_ms": "-1"}, 2.0),
        ({"tdr_timeout_ms": "²"}, 2.0),
        ({"tdr_timeout_ms": "9" * 5000}, 999_999.999),
    ],
)
def test_the_drivers_limit_is_what_its_module_says(
    machine: Machine, files: dict[str, str], wanted: float | None
) -> None:
    for name, text in files.items():
        machine.write(f"{PARAMETERS}/{name}", text)
    assert machine.host().run_limit_s() == (None if wanted is None else pytest.approx(wanted))


@pytest.mark.parametrize(
    ("limit_s", "run_s", "wait_s"),
    [(2.0, 0.5, 10.0), (1.0, 0.25, 10.0), (5.0, 0.5, 15.0), (60.0, 0.5, 30.0), (None, 0.5, 10.0)],
)
def test_runs_take_a_quarter_of_the_drivers_limit_and_half_a_second_at_most(
    limit_s: float | None, run_s: float, wait_s: float
) -> None:
    pace = RunPace(limit_s)
    assert (pace.run_s, pace.wait_s) == (run_s, wait_s)
