"""A draft model beside the model that it drafts for: opened when that one is loaded, asked before its steps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from contextlib import AsyncExitStack, ExitStack
from math import isnan, nan
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.engine.devices import Devices, Ending
from unicorn_async.engine.draft_files import emptied
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.scheduler.draft_book import DraftBook
from unicorn_async.scheduler.draft_wishes import DraftRates

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from unicorn_async.engine.draft_files import DraftFiles
    from unicorn_async.engine.engine_loop import PendingStep, StepRunner
    from unicorn_async.engine.opened_model import OpenedModel
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.scheduler.scheduler import Scheduler
    from unicorn_async.scheduler.sequence import Sequence

_log = logging.getLogger(__name__)


class Drafter:
    """Drafts to the sequences of a scheduler, in steps of its own on the same device.

    `run` has it open for as long as it runs. Before that, and behind it, nothing is drafted. A sequence to which
    something is to be drafted is in no step until that was done; others go on meanwhile.
    """

    def __init__(self, files: DraftFiles, target: OpenedModel, scheduler: Scheduler) -> None:
        self._files = files
        self._target = target
        self._scheduler = scheduler
        self._vocab_size = target.files.config.vocab_size
        self._runner: StepRunner | None = None
        self._book: DraftBook | None = None
        self.is_settled = asyncio.Event()  # it drafts, or never will

    @property
    def is_ready(self) -> bool:
        """Whether the draft model is loaded, and drafts."""
        return self._book is not None

    @property
    def num_sequences(self) -> int:
        """Sequences that the draft model has a state of."""
        return 0 if self._book is None else len(self._book)

    @property
    def blocks_used(self) -> int:
        """Blocks of the draft model's own cache that sequences have."""
        return 0 if self._book is None else self._book.blocks_used

    async def run(self) -> None:
        """Wait for the target's load, open the draft model, and close it when this is cancelled.

        Raises:
            UnicornError: the target's load failed, or the draft's, or there was no memory for it.
        """
        try:
            await asyncio.shield(self._target.load)
            await self._serve()
        finally:
            self.is_settled.set()

    async def _serve(self) -> None:
        async with self._opened() as model:
            await self._load(model)
            book = await self._filled(model)
            speculation = self._scheduler.speculation
            assert speculation is not None, "a draft is refused without"
            speculation.drafts = DraftRates()
            self._runner, self._book = model.runner, book
            self.is_settled.set()
            try:
                await asyncio.get_running_loop().create_future()  # until it is cancelled
            finally:
                self._book = None

    async def draft(self) -> list[Sequence]:
        """Draft to those sequences that have a draft to wait for, once they have no step in flight.

        Returns those to which it has, and of whose grammars is to be asked what of that may come.

        Raises:
            DeviceError: the device is lost, or memory for a step ran out.
        """
        speculation, running = self._scheduler.speculation, self._scheduler.running
        if self._book is None or speculation is None:
            return []
        self._book.follow(running)
        behind = speculation.wish_drafts(running, self._scheduler.num_waiting, self._book.lag)
        if behind:
            batch = self._book.catch_up(behind)
            if batch is not None:
                await (await self._submitted(batch)).result()
        wanted = {sequence: sequence.draft_count for sequence in running if sequence.awaits_draft}
        if not wanted or any(one.num_proposed or (one in wanted and one.num_in_flight) for one in running):
            return []
        counts = self._book.begin(wanted)
        speculation.note_draft(await self._run_draft(self._book, counts))
        for sequence in wanted:
            tokens = self._book.drafted(sequence) if sequence in counts else ()
            known = next((at for at, token in enumerate(tokens) if token >= self._vocab_size), len(tokens))
            sequence.drafted = tokens[:known]
            sequence.draft_count = known
        guided = [sequence for sequence in wanted if sequence.drafted and sequence.sampling.grammar is not None]
        return [sequence for sequence in guided if sequence.finish_reason is None]  # some have left meanwhile

    async def _run_draft(self, book: DraftBook, counts: Mapping[Sequence, int]) -> float | None:
        """Run the steps of a draft: each takes the token of the one before on the device, the host sees them behind.

        Returns their seconds on the device, None if some waited for their commands to be recorded.
        """
        assert self._runner is not None
        pending: deque[tuple[int, PendingStep]] = deque()
        took: list[float] = []

        async def collect() -> None:
            number, step = pending.popleft()
            result = await step.result()
            book.note(counts, number, [token.id for token in result.tokens])
            took.append(nan if result.was_recorded else result.device_s)

        for number in range(max(counts.values(), default=0)):
            if len(pending) == self._runner.max_in_flight:
                await collect()
            pending.append((number, await self._submitted(book.step(counts, number))))
        while pending:
            await collect()
        return None if isnan(sum(took)) else sum(took)

    async def _submitted(self, batch: Batch) -> PendingStep:
        assert self._runner is not None
        return await self._runner.submit(batch)

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[OpenedModel]:
        from unicorn_async.engine.opening import open_model

        device = self._target.device
        info = emptied(device.info)
        devices = Devices(self._target.instance, (info,), (info,), device)
        opening: asyncio.Future[Devices] = asyncio.get_running_loop().create_future()
        opening.set_result(devices)
        async with AsyncExitStack() as stack:
            last = ExitStack()
            stack.push_async_callback(run_to_end, last.close)
            ending = Ending(stack, last, None)
            model = await open_model(self._files.model, self._files.options, opening, ending, lambda what: None)
            yield model

    async def _load(self, model: OpenedModel) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(model.runner.follow_load(lambda: None), name="follow the draft's load")
            group.create_task(_awaited(model.load), name="draft load")
        await model.runner.free_spare_frames()

    async def _filled(self, model: OpenedModel) -> DraftBook:
        """Allocate the cache's pieces; what another process was faster to take is done without."""
        options, pool, states = model.options, model.kv_pool, model.memory_plan.states
        book = DraftBook(
            model.memory_plan.kv.groups,
            options.block_size,
            max_num_seqs=options.max_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_sampled=options.max_sampled,
            max_context=model.memory_plan.kv.max_context,
            vocab_size=model.files.config.vocab_size,
            shares_prefixes=options.prefix_cache,
            takes_masks=model.files.config.vocab_size == self._vocab_size,
            num_spare_states=states.num_spare if states.nbytes else None,
        )
        if pool is None:  # its blocks lie nowhere
            for group, found in enumerate(model.memory_plan.kv.groups):
                book.add_blocks(group, range(found.num_blocks))
            return book
        number = 0
        while not pool.is_complete:
            try:
                blocks = await run_to_end(pool.grow)
            except OutOfMemoryError as exc:
                if number < pool.num_first:
                    raise
                _log.warning("%s; the draft model's KV cache stays as it is", exc)
                pool.give_up()
                break
            book.add_blocks(blocks.group, blocks.numbers)
            number += 1
        return book


async def _awaited(load: asyncio.Task[None]) -> None:
    await asyncio.shield(load)
