"""Random requests that join and leave, alone and side by side, and what may differ between the two."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.ops import sampling_reference as reference
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.engine.engine import Engine

NUM_REQUESTS = 64


@dataclass(frozen=True)
class Job:
    """A request that arrives when others have got `arrival` tokens, and whose consumer leaves after `num_read`.

    With `num_read` 0 it leaves before there is a token.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams
    arrival: int
    num_read: int
    client: str = ""


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
    stream = engine.stream(job.prompt, job.sampling, client=job.client)
    if not job.num_read:
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        return ids
    async for token in stream:
        ids.append(token.id)
        got_token()
        if len(ids) >= job.num_read:
            break
    await stream.aclose()
    return ids


def random_jobs(vocab_size: int, *, lengths: Sequence[int], most_tokens: int, count: int = NUM_REQUESTS) -> list[Job]:
    """Half of them greedy, half of them drawn; a fifth is left by its consumer."""
    rng, jobs = random.Random(20), []
    for number in range(count):
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
        jobs.append(Job(prompt, sampling, rng.randrange(count * most_tokens // 3), num_read))
    return jobs


async def margin(engine: Engine, job: Job, alone: list[int], together: list[int]) -> float:
    """Replay what two answers share; return how far apart their next tokens are, in logits."""
    shared = next(i for i, (one, other) in enumerate(zip(alone, together, strict=True)) if one != other)
    logits = (await engine.logits([*job.prompt, *alone[:shared]]))[-1]
    values = reference.penalised(logits, job.sampling, list(job.prompt), alone[:shared])
    return distance(values, job.sampling, len(job.prompt) + shared, alone[shared], together[shared])


def distance(values: NDArray[np.float32], sampling: SamplingParams, position: int, one: int, other: int) -> float:
    """Return how far logits of two tokens have to move, added up, for the one or the other to be chosen.

    That is their difference, or for tokens that are drawn less where a filter has its limit at one of them. Infinite
    where no such movement changes the choice.
    """
    if not sampling.temperature:
        return abs(float(values[one] - values[other]))
    assert sampling.seed is not None
    for step in np.geomspace(1e-6, 100.0, 400):
        turns = ((one, other), (other, one))
        if all(_drawn(values, sampling, position, up=up, down=down, by=step) == up for up, down in turns):
            return float(2 * step)
    return float("inf")


def _drawn(
    values: NDArray[np.float32], sampling: SamplingParams, position: int, *, up: int, down: int, by: float
) -> int:
    moved = values.copy()
    moved[up] += np.float32(by)
    moved[down] -= np.float32(by)
    return reference.drawn(moved, sampling, seed=sampling.seed or 0, position=position)


@dataclass(frozen=True)
class Outcome:
    """What became of jobs side by side: how many ran at most, and for each other answer its number and margin."""

    most_running: int
    preemptions: int
    prompt_tokens_found: int
    different: dict[int, float]


async def alone(engine: Engine, jobs: Sequence[Job]) -> list[list[int]]:
    """Run jobs one after the other; return what their consumers have read."""
    return [await run_job(engine, job) for job in jobs]


async def side_by_side(engine: Engine, jobs: Sequence[Job], expected: Sequence[list[int]]) -> Outcome:
    """Run jobs as they arrive, and compare what their consumers have read; nothing of them may stay behind."""
    tasks, before = asyncio.all_tasks(), engine.stats()
    party = Party(engine, jobs)
    together = await party.run()
    assert [len(ids) for ids in together] == [len(ids) for ids in expected] == [job.num_read for job in jobs]
    await engine.logits((2,))  # steps run in order: what those who left had under way is done
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert engine._scheduler._states.num_free == engine.config.max_num_seqs
    assert not (asyncio.all_tasks() - tasks), asyncio.all_tasks() - tasks
    different = [number for number, ids in enumerate(together) if ids != expected[number]]
    return Outcome(
        party.most_running,
        stats.preemptions - before.preemptions,
        stats.prompt_tokens_found - before.prompt_tokens_found,
        {number: await margin(engine, jobs[number], expected[number], together[number]) for number in different},
    )


async def check_invariance(engine: Engine, jobs: list[Job], logit_error: float) -> None:
    """Fail unless answers are those that each job gets alone, but for ties."""
    found = await side_by_side(engine, jobs, await alone(engine, jobs))
    assert found.most_running >= 8
    for index, far in found.different.items():
        assert far < 2 * logit_error, jobs[index]
    assert len(found.different) <= len(jobs) // 100


def related_jobs(jobs: Sequence[Job]) -> list[Job]:
    """Return jobs that come sooner, first one client's, then others': a third begin alike, a ninth are left at once."""
    rng, found = random.Random(30), []
    begin = tuple(rng.randrange(3, 500) for _ in range(140))
    for number, job in enumerate(jobs):
        arrival = job.arrival // 8
        changed = replace(job, arrival=arrival, client="one" if arrival < len(jobs) else f"other {number % 2}")
        if number % 3 == 2:
            changed = replace(changed, prompt=(2, *begin, *job.prompt[1:40]))
        found.append(replace(changed, num_read=0) if number % 9 == 8 else changed)
    return found
