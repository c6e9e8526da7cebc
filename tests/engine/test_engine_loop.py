"""The engine's loop between the scheduler and a runner, without a device."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.engine.engine_loop import EngineLoop
from unicorn_async.engine.request_stream import RequestStream
from unicorn_async.engine.types import FinishReason
from unicorn_async.errors import QueueFullError
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.sequence import PENDING
from unicorn_async.scheduler.step_budget import StepBudget

from .fake_runner import FakeRunner, FakeStep
from .loops import all_tokens, let_others_run, make_scheduler, request, running

if TYPE_CHECKING:
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.tokenizer import Tokenizer


async def test_a_step_is_submitted_before_the_tokens_of_the_one_before_it_are_seen(tokenizer: Tokenizer) -> None:
    runner = FakeRunner()
    async with running(make_scheduler(), runner) as loop:
        stream = RequestStream(request(max_tokens=6), tokenizer)
        loop.add(stream)
        await runner.has_submitted(2)
        await let_others_run()
        assert len(runner.submitted) == 2  # as many as there are frames, and no more
        assert runner.submitted[1].scheduled[0].token_ids == (PENDING,)
        runner.gate.set()
        tokens = await all_tokens(stream)
    assert [token.id for token in tokens] == [4, 5, 6, 7, 8, 9]
    assert [token.finish_reason for token in tokens] == [None] * 5 + [FinishReason.LENGTH]
    assert runner.most_in_flight == 2
    assert (loop.counters.steps, loop.counters.tokens_generated, loop.counters.tokens_prefilled) == (6, 6, 3)


async def test_the_next_step_is_submitted_before_consumers_take_the_tokens_of_the_last(tokenizer: Tokenizer) -> None:
    runner = FakeRunner()
    async with running(make_scheduler(), runner) as loop:
        stream = RequestStream(request(max_tokens=20), tokenizer)
        loop.add(stream)
        await runner.has_submitted(2)
        runner.gate.set()
        for number in range(10):
            await stream.get()
            assert len(runner.submitted) >= number + 3  # the two in flight, and one for each that was committed


async def test_steps_that_waited_for_layers_say_nothing_of_what_steps_take(tokenizer: Tokenizer) -> None:
    runner, budget = FakeRunner(is_loading=True), StepBudget((8, 16, 32), 1.0)
    async with running(make_scheduler(step_budget=budget), runner) as loop:
        streams = [RequestStream(request(name, max_tokens=3), tokenizer) for name in "ab"]
        loop.add(streams[0])
        await runner.has_submitted(1)
        runner.loaded.set()
        runner.gate.set()
        await all_tokens(streams[0])
        assert budget.room_beside(1) == 0
        loop.add(streams[1])
        await all_tokens(streams[1])
        assert budget.room_beside(1) == 15  # a size more than the prompt's


async def test_consumers_get_tokens_while_the_loop_never_has_to_wait(tokenizer: Tokenizer) -> None:
    runner = FakeRunner()
    runner.gate.set()
    async with running(make_scheduler(), runner) as loop:
        stream = RequestStream(request(max_tokens=100), tokenizer)
        loop.add(stream)
        await stream.get()
        assert len(runner.submitted) < 5


async def test_the_host_s_time_is_without_the_wait_for_a_step_s_recording(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    class RecordingRunner(FakeRunner):
        async def submit(self, batch: Batch) -> FakeStep:
            nonlocal now
            recorded = asyncio.Event()

            def end_recording() -> None:
                nonlocal now
                now += 100.0
                recorded.set()

            now += 1.0
            asyncio.get_running_loop().call_soon(end_recording)
            await recorded.wait()
            return await super().submit(batch)

    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr("unicorn_async.engine.engine_loop.time", clock)
    monkeypatch.setattr("unicorn_async.engine.running_time.time", clock)
    runner = RecordingRunner()
    runner.gate.set()
    async with running(make_scheduler(), runner) as loop:
        stream = RequestStream(request(max_tokens=3), tokenizer)
        loop.add(stream)
        await all_tokens(stream)
        assert loop.counters.host_s == loop.counters.steps == len(runner.submitted) == 3


async def test_a_stop_string_across_tokens_ends_the_answer_before_it(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.encode(char, add_bos=False)[0] for char in "one. two!"]
    runner = FakeRunner({"a": [*ids, *ids]})
    runner.gate.set()
    scheduler = make_scheduler()
    async with running(scheduler, runner) as loop:
        stream = RequestStream(request(max_tokens=18, stop=(". tw",)), tokenizer)
        loop.add(stream)
        tokens = await all_tokens(stream)
        assert "".join(token.text for token in tokens) == "one"
        assert [token.text for token in tokens[3:]] == [""] * 4
        assert tokens[-1].finish_reason is FinishReason.STOP
        await let_others_run()
        assert scheduler.blocks_used == (0,)


async def test_tokens_that_a_stop_string_cut_off_are_counted(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.encode(char, add_bos=False)[0] for char in "oootwo"]
    runner = FakeRunner({"a": ids})
    runner.gate.set()
    async with running(make_scheduler(), runner) as loop:
        stream = RequestStream(request(max_tokens=6, stop=("ootw",), top_logprobs=0), tokenizer)
        loop.add(stream)
        tokens = await all_tokens(stream)
    assert [(token.text, token.num_unseen) for token in tokens] == [("", 1), ("", 2), ("o", 2), ("", 3), ("", 4)]


async def test_an_end_token_is_counted_as_one_without_text(tokenizer: Tokenizer) -> None:
    letter = tokenizer.encode("o", add_bos=False)[0]
    runner = FakeRunner({"a": [letter, letter, 1, letter, letter, letter]})
    runner.gate.set()
    async with running(make_scheduler(), runner) as loop:
        stream = RequestStream(request(max_tokens=6, stop=("oox",), top_logprobs=0), tokenizer)
        loop.add(stream)
        tokens = await all_tokens(stream)
    assert [(token.text, token.num_unseen) for token in tokens] == [("", 1), ("", 2), ("oo", 1)]


async def test_tokens_know_where_their_text_begins_whether_it_is_complete_or_shown_by_then(
    tokenizer: Tokenizer,
) -> None:
    ids = [tokenizer.encode(text, add_bos=False) for text in ("a", "☃", "ot", "b")]
    runner = FakeRunner({"a": [token_id for part in ids for token_id in part]})
    runner.gate.set()
    async with running(make_scheduler(), runner) as loop:
        stream = RequestStream(request(max_tokens=sum(map(len, ids)), stop=("otw",), top_logprobs=0), tokenizer)
        loop.add(stream)
        tokens = await all_tokens(stream)
    assert "".join(token.text for token in tokens) == "a☃otb"
    assert len(ids[1]) > 1  # no token has the whole character
    offsets = [token.text_offset for token in tokens]
    assert offsets[: 1 + len(ids[1])] == [0] + [1] * len(ids[1])
    assert offsets[1 + len(ids[1])] == 2
    assert offsets[-1] == 4


async def test_a_token_after_the_end_that_was_under_way_is_dropped(tokenizer: Tokenizer) -> None:
    runner = FakeRunner({"a": [20, 1, 30, 31], "b": [40, 41, 42, 43]}, max_in_flight=3)
    async with running(make_scheduler(), runner) as loop:
        first, second = (RequestStream(request(name, max_tokens=4), tokenizer) for name in "ab")
        loop.add(first)
        loop.add(second)
        await runner.has_submitted(3)
        runner.gate.set()
        assert [token.id for token in await all_tokens(first)] == [20, 1]
        assert [token.id for token in await all_tokens(second)] == [40, 41, 42, 43]
    assert loop.counters.tokens_generated == 6


async def test_a_cancelled_request_frees_its_blocks_once_no_step_in_flight_uses_them(tokenizer: Tokenizer) -> None:
    runner, scheduler = FakeRunner(), make_scheduler()
    async with running(scheduler, runner) as loop:
        first, second = (RequestStream(request(name, max_tokens=20), tokenizer) for name in "ab")
        loop.add(first)
        loop.add(second)
        await runner.has_submitted(2)
        loop.cancel(first.sequence)
        await let_others_run()
        assert scheduler.blocks_used == (2,)
        runner.gate.set()
        assert len(await all_tokens(second)) == 20
        await let_others_run()
        assert scheduler.blocks_used == (0,)
    assert all(len(batch.scheduled) == 1 for batch in runner.submitted[2:])


async def test_an_evaluation_that_is_cancelled_as_it_ends_harms_nobody(tokenizer: Tokenizer) -> None:
    runner = FakeRunner()
    async with running(make_scheduler(), runner) as loop:
        evaluated = request("evaluation")
        evaluated.want_logits = True
        evaluation = loop.add_evaluation(evaluated)
        stream = RequestStream(request(max_tokens=5), tokenizer)
        loop.add(stream)
        await runner.has_submitted(1)
        evaluation.done.cancel()
        runner.gate.set()
        assert len(await all_tokens(stream)) == 5


async def test_who_gives_up_its_place_in_a_full_queue_is_told(tokenizer: Tokenizer) -> None:
    async with running(make_scheduler(max_num_seqs=1, max_waiting=3), FakeRunner()) as loop:
        streams = [RequestStream(request(str(number)), tokenizer) for number in range(5)]
        streams[-1].sequence.client = "another"
        for stream in streams:
            loop.add(stream)
        with pytest.raises(QueueFullError, match="4 requests wait, and those of other clients have their turn"):
            await streams[3].get()
        assert loop._scheduler.num_waiting == 4
        with pytest.raises(QueueFullError):
            loop.add(RequestStream(request(), tokenizer))


async def test_a_failed_step_ends_the_loop_and_its_error_reaches_everybody(tokenizer: Tokenizer) -> None:
    runner = FakeRunner(failing_step=2)
    runner.gate.set()
    loop = EngineLoop(make_scheduler(), runner)
    streams = [RequestStream(request(name, max_tokens=9), tokenizer) for name in "abc"]
    for stream in streams:
        loop.add(stream)
    evaluated = request("evaluation", num_prompt=100)
    evaluated.want_logits = True
    evaluation = loop.add_evaluation(evaluated)
    with pytest.raises(RuntimeError, match="on fire") as raised:
        await loop.run()
    loop.fail(raised.value)
    for stream in streams:
        assert [(await stream.get()).id for _ in range(2)] == [4, 5]  # what was there before it
        with pytest.raises(RuntimeError, match="on fire"):
            await stream.get()
    with pytest.raises(RuntimeError, match="on fire"):
        await evaluation.done


async def test_a_fault_in_one_answers_text_ends_that_answer_alone(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, scheduler = FakeRunner({"a": [20, 21, 22], "b": [40, 41, 42]}), make_scheduler()
    runner.gate.set()
    async with running(scheduler, runner) as loop:
        broken, sound = (RequestStream(request(name, max_tokens=3), tokenizer) for name in "ab")

        def fail(*_: object) -> None:
            raise ValueError("no such text")

        monkeypatch.setattr(broken, "add", fail)
        loop.add(broken)
        loop.add(sound)
        with pytest.raises(ValueError, match="no such text"):
            await broken.get()
        assert [token.id for token in await all_tokens(sound)] == [40, 41, 42]


async def test_an_evaluation_that_lost_its_place_has_every_row_once(tokenizer: Tokenizer) -> None:
    """A row of it fits into each step beside the older request, whose blocks run out meanwhile."""
    runner, scheduler = FakeRunner(), make_scheduler(groups=(BlockGroup(0, 6),), max_logit_rows=2)
    runner.gate.set()
    async with running(scheduler, runner) as loop:
        stream = RequestStream(request(num_prompt=8, max_tokens=40), tokenizer)
        loop.add(stream)
        evaluated = request("evaluation", num_prompt=24)
        evaluated.want_logits = True
        evaluation = loop.add_evaluation(evaluated)
        await evaluation.done
        assert len(await all_tokens(stream)) == 40
    assert scheduler.num_preemptions >= 1
    assert np.concatenate(evaluation.rows).ravel().tolist() == list(range(24))


async def test_an_idle_loop_wakes_for_a_request(tokenizer: Tokenizer) -> None:
    runner = FakeRunner()
    runner.gate.set()
    async with running(make_scheduler(), runner) as loop:
        for name in "ab":
            await let_others_run()
            stream = RequestStream(request(name, max_tokens=3), tokenizer)
            loop.add(stream)
            assert len(await all_tokens(stream)) == 3
