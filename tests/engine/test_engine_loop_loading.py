"""The engine's loop while the model loads, without a device."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unicorn_async.engine.request_stream import RequestStream
from unicorn_async.scheduler.sequence import PENDING

from .fake_runner import FakeRunner
from .loops import all_tokens, let_others_run, make_scheduler, request, running

if TYPE_CHECKING:
    from unicorn_async.tokenizer import Tokenizer


async def test_while_the_model_loads_prompts_are_submitted_ahead_and_no_step_needs_anothers_token(
    tokenizer: Tokenizer,
) -> None:
    runner = FakeRunner(is_loading=True, max_in_flight=4)
    runner.gate.set()
    async with running(make_scheduler(), runner) as loop:
        long = RequestStream(request("long", num_prompt=70, max_tokens=3), tokenizer)
        loop.add(long)
        await runner.has_submitted(3)
        await let_others_run()
        assert [batch.num_tokens for batch in runner.submitted] == [32, 32, 6]
        late = RequestStream(request("late", max_tokens=3), tokenizer)
        loop.add(late)
        await runner.has_submitted(4)
        one_too_many = RequestStream(request("one too many", max_tokens=3), tokenizer)
        loop.add(one_too_many)
        await let_others_run()
        assert len(runner.submitted) == 4
        assert not any(PENDING in item.token_ids for batch in runner.submitted for item in batch.scheduled)
        runner.max_in_flight = 2
        runner.loaded.set()
        assert [token.id for token in await all_tokens(long)] == [70, 71, 72]
        assert [token.id for token in await all_tokens(late)] == [4, 5, 6]
        assert [token.id for token in await all_tokens(one_too_many)] == [4, 5, 6]
    assert runner.most_in_flight == 4


async def test_a_prompt_that_follows_the_load_is_as_far_as_its_first_part(tokenizer: Tokenizer) -> None:
    runner = FakeRunner(is_loading=True, max_in_flight=4)
    runner.gate.set()
    async with running(make_scheduler(), runner) as loop:
        long = RequestStream(request("long", num_prompt=70, max_tokens=3), tokenizer)
        loop.add(long)
        await runner.has_submitted(3)
        await let_others_run()
        late = RequestStream(request("late", max_tokens=3), tokenizer)
        loop.add(late)
        await runner.has_submitted(4)
        runner.layers_followed = {0: 7, 1: 6, 2: 6, 3: 2}
        assert [loop.prompt_layers(name) for name in ("long", "late", "unknown")] == [7, 2, None]
        runner.loaded.set()
        await all_tokens(long)
        await all_tokens(late)
        assert loop.prompt_layers("long") is None


async def test_no_step_is_made_between_the_end_of_the_load_and_its_first_tokens(tokenizer: Tokenizer) -> None:
    runner = FakeRunner(is_loading=True, max_in_flight=4)
    async with running(make_scheduler(), runner) as loop:
        streams = [RequestStream(request(name, num_prompt=40, max_tokens=3), tokenizer) for name in "ab"]
        for stream in streams:
            loop.add(stream)
        await runner.has_submitted(3)  # 32, 8 + 24, 16
        runner.loaded.set()
        await let_others_run()
        assert len(runner.submitted) == 3
        steps_at_token: list[int] = []
        runner.gate.set()
        for stream in streams:
            await stream.get()
            steps_at_token.append(len(runner.submitted))
        assert steps_at_token[0] == 3
        for stream in streams:
            await all_tokens(stream)


async def test_a_first_token_of_the_load_is_seen_before_the_next_step_is_submitted(tokenizer: Tokenizer) -> None:
    runner = FakeRunner(is_loading=True, max_in_flight=4)
    async with running(make_scheduler(), runner) as loop:
        stream = RequestStream(request(num_prompt=40, max_tokens=3), tokenizer)
        loop.add(stream)

        async def steps_at_first_token() -> int:
            await stream.get()
            return len(runner.submitted)

        first = asyncio.create_task(steps_at_first_token())
        await runner.has_submitted(2)  # 32, 8
        runner.loaded.set()
        await let_others_run()
        runner.gate.set()
        assert await first == 2
        await all_tokens(stream)
        assert len(runner.submitted) == 4


async def test_a_step_of_the_load_that_samples_nothing_holds_no_other_back(tokenizer: Tokenizer) -> None:
    runner = FakeRunner(is_loading=True, max_in_flight=1)
    async with running(make_scheduler(), runner) as loop:
        stream = RequestStream(request("long", num_prompt=70, max_tokens=2), tokenizer)
        loop.add(stream)
        await runner.has_submitted(1)
        runner.max_in_flight = 2
        runner.loaded.set()
        await asyncio.wait_for(runner.has_submitted(2), 120)
        runner.gate.set()
        await all_tokens(stream)


async def test_frames_of_the_load_are_freed_once_its_steps_are_collected(tokenizer: Tokenizer) -> None:
    runner = FakeRunner(is_loading=True, max_in_flight=4)
    async with running(make_scheduler(), runner) as loop:
        stream = RequestStream(request("long", num_prompt=70, max_tokens=3), tokenizer)
        loop.add(stream)
        await runner.has_submitted(3)
        runner.loaded.set()
        await let_others_run()
        assert runner.done_when_freed is None
        runner.gate.set()
        await all_tokens(stream)
    assert runner.done_when_freed is not None
    assert runner.done_when_freed >= 3


async def test_frames_of_a_load_that_nobody_waited_for_are_freed(tokenizer: Tokenizer) -> None:
    runner = FakeRunner(is_loading=True)
    async with running(make_scheduler(), runner):
        await let_others_run()
        assert runner.done_when_freed is None
        runner.loaded.set()
        await let_others_run()
        assert runner.done_when_freed == 0
