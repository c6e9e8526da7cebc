"""The loop that keeps the device busy: schedules and submits a step while the one before it runs."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unicorn_async.engine.evaluation import Evaluation
from unicorn_async.engine.running_time import RunningTime
from unicorn_async.engine.step_feed import StepFeed
from unicorn_async.engine.types import FinishReason
from unicorn_async.errors import QueueFullError

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.engine.cache_growth import CacheGrowth
    from unicorn_async.engine.guides import Guides
    from unicorn_async.engine.request_stream import RequestStream
    from unicorn_async.errors import UnicornError
    from unicorn_async.memory.kv_pool import NewBlocks
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.scheduler.scheduler import Scheduler
    from unicorn_async.scheduler.sequence import Sequence
    from unicorn_async.step.result import SampledToken, StepResult


_MASKS_SHARE = 0.25  # of a step's time, in which the next one waits for masks while the device has something to do
_MOST_EVALUATING = 8  # steps in flight beside an open evaluation: each that has a part of it has logits for the host


class PendingStep(Protocol):
    """A step that was submitted."""

    @property
    def layers_followed(self) -> int | None:
        """Layers of a load behind which the step was submitted; None if it follows none."""

    async def result(self) -> StepResult:
        """Wait until the device has done the step."""


class StepRunner(Protocol):
    """Runs batches; `Runner` does it on a GPU."""

    @property
    def is_loading(self) -> bool:
        """Whether steps wait for layers; until then none ends, and none may have tokens that another one samples."""

    @property
    def max_in_flight(self) -> int:
        """Steps that may be submitted now before the oldest of them has ended."""

    async def submit(self, batch: Batch) -> PendingStep:
        """Submit a step; waits neither for layers that are not loaded yet nor for the step."""

    async def follow_load(self, on_change: Callable[[], None]) -> None:
        """Take steps through the layers as these arrive; returns when nothing is loading any more.

        `on_change` is called when one of the properties may have changed.
        """

    async def free_spare_frames(self) -> None:
        """Free what only steps of the load needed; called once, when these have been collected."""


class Drafting(Protocol):
    """Proposes tokens by a model of its own; `Drafter` does."""

    async def draft(self) -> list[Sequence]:
        """Draft to who is to wait for that, as far as it can be; returns those of whom a grammar says what may come."""


class Keeping(Protocol):
    """Keeps blocks outside the device's memory, and brings them back; `BlockKeeper` does."""

    async def run(self, on_change: Callable[[], None]) -> None:
        """Do so until cancelled; `on_change` is called when a sequence may go on."""

    def open(self) -> None:
        """Take it that no step waits for layers of a load any more."""

    def wake(self) -> None:
        """Look whether there is something to do."""


@dataclass(slots=True)
class LoopCounters:
    """What the loop has done since it began.

    `host_s` is the time in which it worked: not that of a thread that it waits for, which records or compiles.
    """

    steps: int = 0
    tokens_generated: int = 0
    tokens_prefilled: int = 0
    host_s: float = 0.0
    device_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _StepInFlight:
    """A step, and whether it began while the model loaded and has a token that somebody waits for since then."""

    step: PendingStep
    batch: Batch
    in_load: bool
    has_first_token: bool
    begun_s: float  # of `time.perf_counter`
    host_s: float


class EngineLoop:
    """Joins the scheduler, the runner, the growth of the KV cache, if it grows, and the streams of requests.

    Sequences with a grammar have begun with `guides` before they are added; without these there are none. `on_step` is
    told each step's result. A `drafter` is asked before each step. A `keeper` looks after blocks beside the steps.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        growth: CacheGrowth | None = None,
        guides: Guides | None = None,
        on_step: Callable[[StepResult], None] | None = None,
        drafter: Drafting | None = None,
        keeper: Keeping | None = None,
    ) -> None:
        self.counters = LoopCounters()
        self.feed = StepFeed(scheduler)
        self._scheduler = scheduler
        self._runner = runner
        self._growth = growth
        self._guides = guides
        self._on_step = on_step
        self._drafter = drafter
        self._keeper = keeper
        self._last_step_s = 0.0
        self._streams: dict[Sequence, RequestStream] = {}
        self._evaluations: dict[Sequence, Evaluation] = {}
        self._held: dict[Sequence, SampledToken] = {}  # of who lacks blocks: the answer's last, if none come
        self._in_flight: deque[_StepInFlight] = deque()
        self._wake = asyncio.Event()
        self._load_collected = asyncio.Event()
        self.growth_ended = asyncio.Event()  # or nothing grows, or the loop has failed
        if growth is None:
            self.growth_ended.set()

    def add(self, stream: RequestStream) -> None:
        """Begin a request.

        Raises:
            RequestError: the scheduler refuses it.
        """
        self._add(stream.sequence)
        self._streams[stream.sequence] = stream

    def add_evaluation(self, sequence: Sequence) -> Evaluation:
        """Begin an evaluation request; raises as `add` does."""
        self._add(sequence)
        evaluation = self._evaluations[sequence] = Evaluation()
        return evaluation

    def _add(self, sequence: Sequence) -> None:
        displaced = self._scheduler.add(sequence)
        if displaced is not None:
            waiting = self._scheduler.num_waiting - 1
            self._lose(
                displaced, QueueFullError(f"{waiting} requests wait, and those of other clients have their turn")
            )
        self._wake.set()

    def cancel(self, sequence: Sequence) -> None:
        """End a request; its blocks are free as soon as no step in flight uses them."""
        self._streams.pop(sequence, None)
        self._held.pop(sequence, None)
        self._evaluations.pop(sequence, None)
        self._scheduler.finish(sequence, FinishReason.CANCELLED)
        self._end_guide(sequence)
        self._wake.set()

    def prompt_layers(self, request_id: str) -> int | None:
        """Return how many layers of a load the first part of a request's prompt was submitted behind, if of any."""
        for pending in self._in_flight:
            if pending.in_load and any(item.sequence.request_id == request_id for item in pending.batch.scheduled):
                return pending.step.layers_followed
        return None

    def fail(self, error: BaseException) -> None:
        """Hand an error to every request that is still open."""
        for stream in self._streams.values():
            stream.fail(error)
        for evaluation in self._evaluations.values():
            evaluation.end(error)
        self._streams.clear()
        self._held.clear()
        self._evaluations.clear()
        self.growth_ended.set()

    async def run(self) -> None:
        """Run until cancelled; the first steps go through the model while it loads."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_load(), name="follow load")
                group.create_task(self._run_steps(), name="steps")
                if self._growth is not None:
                    group.create_task(self._grow(self._growth), name="grow the KV cache")
                if self._keeper is not None:
                    group.create_task(self._keeper.run(self._wake.set), name="keep blocks")
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _follow_load(self) -> None:
        await self._runner.follow_load(self._wake.set)
        await self._load_collected.wait()
        await self._runner.free_spare_frames()  # a driver takes its time over it, for which no first token waits

    async def _grow(self, growth: CacheGrowth) -> None:
        def add(blocks: NewBlocks) -> None:
            self._scheduler.add_blocks(blocks.group, blocks.numbers)
            self._wake.set()

        shortage = await growth.run(add, lambda: self._scheduler.has_work)
        for sequence in self._scheduler.end_growth():
            assert shortage is not None, "all that was planned is there"
            held = self._held.pop(sequence, None)
            if held is None:
                self._lose(sequence, shortage)
            else:
                self._give(sequence, held, FinishReason.LENGTH)
        for sequence, held in list(self._held.items()):
            self._give(sequence, held, None)
        self._held.clear()
        self.growth_ended.set()
        self._wake.set()

    def _end_guide(self, sequence: Sequence) -> None:
        if self._guides is not None:
            self._guides.end(sequence)

    def _guide(self, sequence: Sequence, token_ids: list[int]) -> None:
        """Ask what may follow tokens of an answer with a grammar, also behind those that may be proposed next."""
        speculation = self._scheduler.speculation
        assert self._guides is not None, "it has begun with them"
        if speculation is None:
            self._guides.advance(sequence, token_ids, self._guided)
            return
        proposed, most = speculation.foresee(sequence, self._scheduler.num_running)
        self._guides.advance(sequence, token_ids, self._guided, proposed=proposed, most=most)

    def _guided(self, sequence: Sequence, error: UnicornError | None) -> None:
        if error is not None:
            self._lose(sequence, error)
        self._wake.set()

    def _lose(self, sequence: Sequence, error: UnicornError) -> None:
        stream, evaluation = self._streams.get(sequence), self._evaluations.get(sequence)
        if stream is not None:
            stream.fail(error)
        if evaluation is not None:
            evaluation.end(error)
        self.cancel(sequence)

    async def _run_steps(self) -> None:
        in_flight = self._in_flight
        while True:
            await self._settle_masks()
            if self._drafter is not None and not self._runner.is_loading:
                for sequence in await self._drafter.draft():
                    self._guide(sequence, [])
                await self._settle_masks()
            started = time.perf_counter()
            is_loading, batch = self._runner.is_loading, None
            if not is_loading and not any(step.in_load for step in in_flight):
                self._load_collected.set()
                if self._keeper is not None:
                    self._keeper.open()
                if self._growth is not None:
                    self._growth.go_on()
            # The commands of a later step may have to be recorded: a first token of the load does not wait for that.
            # A second token may meanwhile, for the steps in flight when the load ended, and for no more than these.
            owes_token = not is_loading and any(step.has_first_token for step in in_flight)
            if len(in_flight) < self._most_in_flight() and not owes_token:
                batch = self._scheduler.schedule(known_only=is_loading)
                if self._scheduler.wants_blocks and self._growth is not None:
                    self._growth.hurry()
            if self._keeper is not None:
                self._keeper.wake()
            if batch is not None:
                scheduled_s = time.perf_counter() - started
                submission = RunningTime(self._runner.submit(batch))
                step = await submission
                host_s, is_first = scheduled_s + submission.seconds, is_loading and batch.num_samples > 0
                in_flight.append(_StepInFlight(step, batch, is_loading, is_first, started, host_s))
                self._note(batch, host_s)
            elif in_flight and not is_loading:
                await asyncio.sleep(0)  # consumers get their turn, also where the device is faster than this loop
                ended = in_flight.popleft()
                result = await ended.step.result()
                if self.feed.is_watched:
                    self.feed.note(ended.begun_s, ended.host_s, result)
                if self._on_step is not None:
                    self._on_step(result)
                self._commit(result)
                if owes_token:
                    await asyncio.sleep(0)  # they get it before more work is made
            else:
                self._wake.clear()
                await self._wake.wait()

    async def _settle_masks(self) -> None:
        if self._guides is not None and self._guides.is_busy and (self._in_flight or self._runner.max_in_flight > 1):
            await self._guides.settle(_MASKS_SHARE * self._last_step_s)

    def _most_in_flight(self) -> int:
        most = self._runner.max_in_flight
        return min(most, _MOST_EVALUATING) if self._evaluations else most

    def _note(self, batch: Batch, host_s: float) -> None:
        self.counters.steps += 1
        self.counters.host_s += host_s
        self.counters.tokens_prefilled += batch.num_tokens - batch.num_samples

    def _commit(self, result: StepResult) -> None:
        started = time.perf_counter()
        for item, rows in result.logits:
            evaluation = self._evaluations.get(item.sequence)
            if evaluation is not None:
                if item.resets:  # computed again from the start, after it lost its place
                    evaluation.rows.clear()
                evaluation.rows.append(rows)
        for item, embedding in result.pooled:
            evaluation = self._evaluations.get(item.sequence)
            if evaluation is not None:
                evaluation.rows.append(embedding)
        tokens, step_s, start_s = result.tokens, None if result.waited else result.device_s, result.device_start_s
        committed = self._scheduler.commit(
            result.batch,
            [token.id for token in tokens],
            step_s=step_s,
            start_s=start_s,
            was_late=result.was_recorded,
            predicted=result.predicted,
            drafting_s=result.drafting_s,
        )
        self._last_step_s = 0.0 if result.waited else result.device_s
        guided: dict[Sequence, list[int]] = {}
        for sequence, token_id, reason, row in committed:
            if sequence not in self._streams:  # an evaluation
                if reason is not None and sequence in self._evaluations:
                    self._evaluations.pop(sequence).end()
                continue
            self.counters.tokens_generated += 1
            if self._held:
                held = self._held.pop(sequence, None)
                if held is not None and self._give(sequence, held, None):
                    continue
            if reason is None and self._scheduler.lacks_blocks(sequence):
                self._held[sequence] = tokens[row]
            elif self._give(sequence, tokens[row], reason):
                continue
            if token_id is not None and sequence.sampling.grammar is not None:
                guided.setdefault(sequence, []).append(token_id)
        for sequence, token_ids in guided.items():
            if sequence in self._streams:
                self._guide(sequence, token_ids)
        self.counters.host_s += time.perf_counter() - started
        self.counters.device_s += result.device_s

    def _give(self, sequence: Sequence, token: SampledToken, reason: FinishReason | None) -> bool:
        """Hand a token to who asked for it; returns whether the answer ends with it."""
        stream = self._streams[sequence]
        try:
            reason = stream.add(token, reason)
        except Exception as exc:  # a fault in one answer's text must not end the others
            stream.fail(exc)
            reason = FinishReason.CANCELLED
        if reason is not None:
            del self._streams[sequence]
            self._scheduler.finish(sequence, reason)
            self._end_guide(sequence)
        return reason is not None
