"""Requests that join and leave at random get, token for token, what each gets alone."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.golden.checkpoints import golden
from tests.ops import sampling_reference as reference
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.engine.engine import Engine

    from .conftest import OpenEngine

NUM_REQUESTS = 64


@dataclass(frozen=True)
class Job:
    """A request that arrives when others have got `arrival` tokens, and whose consumer leaves after `num_read`."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    arrival: int
    num_read: int


@dataclass
class Party:
    """Runs jobs side by side; answers are in the order of the jobs."""

    engine: Engine
    jobs: Sequence[Job]
    most_running: int = 0
    _num_tokens: int = 0
    _tasks: dict[int, asyncio.Task[list[int]]] = field(default_factory=dict)

    async def run(self) -> list[list[int]]:
        while len(self._tasks) < len(self.jobs):
            absent = (job.arrival for index, job in enumerate(self.jobs) if index not in self._tasks)
            self._num_tokens = max(self._num_tokens, min(absent))  # nobody is left who could get a token before it
            self._start_due()
            while running := [task for task in self._tasks.values() if not task.done()]:
                await asyncio.wait(running)
        return [self._tasks[index].result() for index in range(len(self.jobs))]

    def _start_due(self) -> None:
        for index, job in enumerate(self.jobs):
            if job.arrival <= self._num_tokens and index not in self._tasks:
                self._tasks[index] = asyncio.create_task(run_job(self.engine, job, self._got_token))

    def _got_token(self) -> None:
        self._num_tokens += 1
        self.most_running = max(self.most_running, self.engine.stats().running)
        self._start_due()


async def run_job(engine: Engine, job: Job, got_token: Any = lambda: None) -> list[int]:
    """Run one request; return the tokens that its consumer has read."""
    ids: list[int] = []
    stream = engine.stream(job.prompt, job.sampling)
    async for token in stream:
        ids.append(token.id)
        got_token()
        if len(ids) >= job.num_read:
            break
    await stream.aclose()
    return ids


def random_jobs(vocab_size: int, *, lengths: Sequence[int], most_tokens: int) -> list[Job]:
    """Half of them greedy, half of them drawn; a fifth is left by its consumer."""
    rng, jobs = random.Random(20), []
    for number in range(NUM_REQUESTS):
        length = rng.choice(lengths)
        prompt = (2, *(rng.randrange(3, vocab_size) for _ in range(length - 1)))
        max_tokens = rng.randrange(1, most_tokens + 1)
        chosen: dict[str, Any] = {}
        if number % 2:
            chosen = {"temperature": rng.uniform(0.3, 1.5), "seed": rng.getrandbits(64)}
            chosen |= {"top_k": rng.choice((0, 5, 40)), "top_p": rng.choice((1.0, 0.9))}
            chosen |= {"repetition_penalty": rng.choice((1.0, 1.2)), "presence_penalty": rng.choice((0.0, 0.5))}
        num_read = rng.randrange(1, max_tokens + 1) if rng.random() < 0.2 else max_tokens
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **chosen)
        jobs.append(Job(prompt, sampling, rng.randrange(NUM_REQUESTS * most_tokens // 3), num_read))
    return jobs


async def margin(engine: Engine, job: Job, alone: list[int], together: list[int]) -> float:
    """Replay what two answers share; return how far apart their next tokens are, in logits."""
    shared = next(i for i, (one, other) in enumerate(zip(alone, together, strict=True)) if one != other)
    logits = (await engine.logits([*job.prompt, *alone[:shared]]))[-1]
    scores: NDArray[Any] = reference.penalised(logits, job.sampling, list(job.prompt), alone[:shared])
    if job.sampling.temperature:
        position = len(job.prompt) + shared
        assert job.sampling.seed is not None
        high, low = reference.philox(np.arange(scores.size, dtype=np.uint64), position, job.sampling.seed)
        uniform = (high.astype(np.float64) + low.astype(np.float64) / 2**32) / 2**32
        scores = scores - job.sampling.temperature * np.log(-np.log1p(-uniform))
    return abs(float(scores[alone[shared]] - scores[together[shared]]))


async def check_invariance(engine: Engine, jobs: list[Job], logit_error: float) -> None:
    alone = [await run_job(engine, job) for job in jobs]
    party = Party(engine, jobs)
    together = await party.run()
    assert party.most_running >= 8
    assert [len(ids) for ids in together] == [len(ids) for ids in alone] == [job.num_read for job in jobs]
    different = [index for index in range(len(jobs)) if alone[index] != together[index]]
    for index in different:
        assert await margin(engine, jobs[index], alone[index], together[index]) < 2 * logit_error, jobs[index]
    assert len(different) <= len(jobs) // 100
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


@pytest.mark.whole("that 64 random requests, left early and drawn, too, get what each gets alone")
async def test_random_weights(open_engine: OpenEngine) -> None:
    """Gemma's layout, with windows shorter than most prompts, and a cache that is too small for all at once."""
    expected = golden("gemma3")
    jobs = random_jobs(512, lengths=(1, 2, 5, 17, 33, 60, 150), most_tokens=32)
    async with open_engine(
        max_num_seqs=16, max_num_batched_tokens=96, max_context=256, kv_cache_bytes=1 << 20
    ) as engine:
        errors = [expected.error(i, await engine.logits(prompt)) for i, prompt in enumerate(expected.prompts[:3])]
        await check_invariance(engine, jobs, max(errors) * expected.deviation)
