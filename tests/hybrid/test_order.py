"""What halves of steps wait for."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import DeviceLostError
from unicorn_async.hybrid.order import HalfOrder, HalfTurn
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.batch import Batch, ScheduledSequence
from unicorn_async.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Coroutine

LAYERS = 3


def sequence(name: str) -> Sequence:
    return Sequence(name, (1, 2, 3), SamplingParams(), 0)


def decodes(*sequences: Sequence) -> Batch:
    items = tuple(ScheduledSequence(one, 3, 1, (-1,), samples=True, is_decode=True) for one in sequences)
    return Batch(items, len(items), 0)


def part(of: Sequence, *, samples: bool = False) -> Batch:
    """A part of a prompt, the last one if it samples."""
    return Batch((ScheduledSequence(of, 0, 2, (1, 2), samples, is_decode=False),), 2, 0)


async def waits(waiting: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Start it, and see that it waits."""
    task = asyncio.create_task(waiting)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


def go_through(turn: HalfTurn) -> None:
    turn.begun()
    for layer in range(LAYERS):
        turn.attended(layer)
    turn.ended()


async def test_halves_of_a_step_with_other_sequences_do_not_wait_for_each_other() -> None:
    turns = HalfOrder(LAYERS)
    first, second = (turns.enter(number, decodes(sequence("one"))) for number in range(2))
    for turn in (second, first):
        await turn.may_begin()
        turn.begun()
        for layer in range(LAYERS):
            await turn.may_attend(layer)
            turn.attended(layer)
        turn.ended()


async def test_a_half_begins_at_the_end_of_the_same_half_of_the_step_before() -> None:
    turns, (a, b) = HalfOrder(LAYERS), (sequence("a"), sequence("b"))
    first, second = turns.enter(0, decodes(a)), turns.enter(1, decodes(b))
    next_first, next_second = turns.enter(0, decodes(a)), turns.enter(1, decodes(b))
    for turn in (first, second):
        turn.begun()
        turn.attended(LAYERS - 1)
    beginning = [await waits(turn.may_begin()) for turn in (next_first, next_second)]
    first.ended()
    await beginning[0]
    assert not beginning[1].done()
    second.ended()
    await beginning[1]


async def test_the_same_half_is_waited_for_whatever_its_sequences() -> None:
    turns = HalfOrder(LAYERS)
    first, second = (turns.enter(0, part(sequence("one"))) for _ in range(2))
    beginning = await waits(second.may_begin())
    go_through(first)
    await beginning


async def test_a_sequence_that_comes_into_the_other_half_waits_for_its_token() -> None:
    turns, one = HalfOrder(LAYERS), sequence("one")
    first, second = turns.enter(0, decodes(one, sequence("other"))), turns.enter(1, decodes(one))
    first.begun()
    beginning = await waits(second.may_begin())
    first.ended()
    await beginning


async def test_a_prompt_that_goes_on_follows_layer_by_layer() -> None:
    turns, one = HalfOrder(LAYERS), sequence("one")
    first, second = turns.enter(0, part(one)), turns.enter(1, part(one, samples=True))
    beginning = await waits(second.may_begin())
    first.begun()
    await beginning
    second.begun()
    for layer in range(LAYERS):
        attending = await waits(second.may_attend(layer))
        first.attended(layer)
        await attending
        second.attended(layer)


async def test_a_half_waits_for_all_of_several_before_it() -> None:
    turns, (a, b) = HalfOrder(LAYERS), (sequence("a"), sequence("b"))
    first, second = turns.enter(0, decodes(a)), turns.enter(1, decodes(b))
    whole = turns.enter(0, decodes(a, b))
    beginning = await waits(whole.may_begin())
    go_through(second)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not beginning.done()
    go_through(first)
    await beginning


async def test_those_behind_a_half_that_fails_get_its_error() -> None:
    turns, one = HalfOrder(LAYERS), sequence("one")
    first, second, third = (turns.enter(number, part(one)) for number in (0, 1, 0))
    first.begun()
    second.begun()
    attending, beginning = await waits(second.may_attend(0)), await waits(third.may_begin())
    error = DeviceLostError("it fell off the bus")
    first.failed(error)
    later = turns.enter(0, part(one))
    for waiting in (attending, beginning, later.may_begin()):
        with pytest.raises(DeviceLostError, match="fell off the bus"):
            await waiting


async def test_a_failure_after_the_end_is_nobody_s() -> None:
    turns, one = HalfOrder(LAYERS), sequence("one")
    first, second = turns.enter(0, decodes(one)), turns.enter(0, decodes(one))
    go_through(first)
    first.failed(DeviceLostError("too late"))
    await second.may_begin()


def test_halves_that_have_ended_are_forgotten() -> None:
    turns, one = HalfOrder(LAYERS), sequence("one")
    gone = []
    for step in range(4):
        turn = turns.enter(step % 2, decodes(one))
        go_through(turn)
        gone.append(weakref.ref(turn))
    gc.collect()
    assert [ref() is None for ref in gone] == [True, True, True, False]
