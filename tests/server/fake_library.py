"""Models without files: fake engines that count how many of them are open, and hold where a test says so."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.server.fake_engine import FakeEngine
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.model_library import ListedModel, ModelChoice, PlannedModel, PreparedModel
from unicorn_async.errors import CheckpointError, EngineClosedError, ModelNotFoundError
from unicorn_async.public_text import PublicText

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unicorn_async.engine.model_facts import ModelFacts
    from unicorn_async.engine.model_library import OnWait
    from unicorn_async.engine.placement import DevicePlan
    from unicorn_async.engine.types import LoadProgress

TURNS = 3  # of the loop, that opening and closing take


class NamedEngine(FakeEngine):
    """A fake engine that answers with its model's name and can be closed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"I am {name}")
        self.model_name = name

    async def close(self) -> None:
        await self.fail_load(EngineClosedError("the engine is closed"))


class FakeLibrary:
    """Has the models "a", "b", "c", one that is "damaged", and "unknown" to those who ask for anything else.

    `more` are further names, `adapter_names` those of adapters; `facts` is what is known of models of these names,
    unless it `holds_facts`, and `plans` where they would lie. `refuse` is raised for every choice; `fail_open` has
    errors for models of these names. `planned` and `prepared` are the choices that came.
    Who is prepared waits for `hold_prepare`, in its thread.
    `downloads` are what models wait for before they are opened.
    `hold_open`, `hold_load` and `hold_close` have events that models of these names wait for.
    """

    def __init__(self) -> None:
        self.can_reopen = True
        self.engines: list[NamedEngine] = []
        self.num_open = 0
        self.opening = asyncio.Event()  # set once the first begins to be opened
        self.downloads: list[LoadProgress] = []
        self.hold_open: dict[str, asyncio.Event] = {}
        self.hold_load: set[str] = set()
        self.hold_close: dict[str, asyncio.Event] = {}
        self.fail_open: dict[str, Exception] = {}
        self.refuse: Exception | None = None
        self.preparing = threading.Event()  # set once the first is prepared
        self.hold_prepare: threading.Event | None = None
        self.more: tuple[str, ...] = ()
        self.facts: dict[str, ModelFacts] = {}
        self.holds_facts = False
        self.adapter_names: tuple[str, ...] = ()
        self.plans: dict[str, tuple[DevicePlan, ...]] = {}
        self.planned: list[ModelChoice] = []
        self.prepared: list[ModelChoice] = []
        self.is_freed = asyncio.Event()  # unless it is cleared, nothing is left to be freed
        self.is_freed.set()

    def names(self) -> tuple[str, ...]:
        return ("a", "b", "c", *self.more)

    def models(self, time_s: float) -> tuple[ListedModel, ...]:
        known = {} if self.holds_facts else self.facts
        return tuple(ListedModel(name, known.get(name)) for name in self.names())

    def adapters(self) -> tuple[str, ...]:
        return self.adapter_names

    def placement(self, choice: ModelChoice) -> PlannedModel:
        self.planned.append(choice)
        if self.refuse is not None:
            raise self.refuse
        if choice.name not in self.names():
            raise ModelNotFoundError(f"model {choice.name!r} is not among those that may be loaded here")
        plans = self.plans.get(choice.name)
        if plans is None:
            raise CheckpointError(f"{choice.name}: nobody knows where it would lie")
        return PlannedModel(choice.name, choice.weights or WeightScheme.AUTO, 1000, plans)

    def prepare(self, choice: ModelChoice) -> PreparedModel:
        self.prepared.append(choice)
        self.preparing.set()
        if self.hold_prepare is not None:
            assert self.hold_prepare.wait(600)
        if self.refuse is not None:
            raise self.refuse
        if choice.name == "damaged":
            raise CheckpointError("damaged: ends too early")
        if choice.name not in self.names():
            raise ModelNotFoundError(f"model {choice.name!r} is not among those that may be loaded here")
        return prepared(choice.name, choice.max_context)

    async def freed(self) -> None:
        await self.is_freed.wait()

    def public_text(self, text: str) -> str:
        return PublicText().of(text)

    @asynccontextmanager
    async def open(self, model: PreparedModel, on_wait: OnWait) -> AsyncIterator[NamedEngine]:
        assert self.num_open == 0, "the last engine has to be closed first"
        self.num_open += 1
        for download in self.downloads:
            on_wait("download", download)
            await asyncio.sleep(0.05)
        on_wait("device")
        self.opening.set()
        try:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if model.name in self.hold_open:
                await self.hold_open[model.name].wait()
            if model.name in self.fail_open:
                raise self.fail_open[model.name]
            engine = NamedEngine(model.name)
            if model.name in self.hold_load:
                engine.loaded.clear()
            self.engines.append(engine)
            try:
                yield engine
            finally:
                await engine.close()
                if model.name in self.hold_close:
                    await self.hold_close[model.name].wait()
                for _ in range(TURNS):
                    await asyncio.sleep(0)
        finally:
            self.num_open -= 1


def prepared(name: str, max_context: int | None = None) -> PreparedModel:
    return PreparedModel(name, name, EngineConfig(model_name=name, max_context=max_context))
