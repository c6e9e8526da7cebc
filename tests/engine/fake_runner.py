"""Runs steps without a device: tokens come from a script, logits say which position they belong to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.step.result import SampledToken, StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from unicorn_async.scheduler.batch import Batch, ScheduledSequence


@dataclass
class FakeRunner:
    """`script` has, by request, the tokens that are sampled; a request without one gets its tokens' positions.

    Steps end at once while `gate` is set. The step `failing_step` fails where it is waited for. Where it `is_loading`,
    that ends with `loaded`. `done_when_freed` is the number of steps that were done when spare frames were freed.
    `layers_followed` are those of a load that steps of these numbers have behind them.
    """

    script: Mapping[str, Sequence[int]] = field(default_factory=dict)
    failing_step: int | None = None
    max_in_flight: int = 2
    is_loading: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    submitted: list[Batch] = field(default_factory=list)
    most_in_flight: int = 0
    num_done: int = 0
    done_when_freed: int | None = None
    layers_followed: dict[int, int] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(self, batch: Batch) -> FakeStep:
        self.submitted.append(batch)
        self.most_in_flight = max(self.most_in_flight, len(self.submitted) - self.num_done)
        self._changed.set()
        return FakeStep(self, batch, self.is_loading)

    async def follow_load(self, on_change: Callable[[], None]) -> None:
        if self.is_loading:
            await self.loaded.wait()
            self.is_loading = False
        on_change()

    async def free_spare_frames(self) -> None:
        self.done_when_freed = self.num_done

    async def has_submitted(self, count: int) -> None:
        """Wait until so many steps were submitted."""
        while len(self.submitted) < count:
            self._changed.clear()
            await self._changed.wait()

    def token(self, item: ScheduledSequence) -> int:
        position = item.start + item.num_tokens
        script = self.script.get(item.sequence.request_id)
        return position if script is None else script[position - len(item.sequence.prompt_ids)]


@dataclass
class FakeStep:
    """A step in flight."""

    runner: FakeRunner
    batch: Batch
    waited: bool

    @property
    def layers_followed(self) -> int | None:
        return self.runner.layers_followed.get(self.batch.step, 0) if self.waited else None

    async def result(self) -> StepResult:
        await self.runner.gate.wait()
        if self.batch.step == self.runner.failing_step:
            raise RuntimeError("the device is on fire")
        self.runner.num_done += 1
        tokens = tuple(SampledToken(self.runner.token(item)) for item in self.batch.scheduled if item.samples)
        logits = tuple(
            (item, np.arange(item.start, item.start + item.num_tokens, dtype=np.float32).reshape(-1, 1))
            for item in self.batch.scheduled
            if item.sequence.want_logits
        )
        return StepResult(self.batch, tokens, logits, 0.001, waited=self.waited)
