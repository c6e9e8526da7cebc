"""What a load has the driver do: from threads, so that the event loop goes on while the driver takes its time."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.golden.adapters import BLENDS, write_adapter
from unicorn_async.config import AttentionKind, AttentionTarget, WeightScheme
from unicorn_async.gpu.kernel import Kernel, KernelLibrary
from unicorn_async.gpu.memory import Memory
from unicorn_async.gpu.queue import Queue
from unicorn_async.lora_spec import LoraSpec

from .answers import PROMPT, answer
from .loading_gate import HELD_FROM, LoadingGate, some_layers

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.gpu.device_info import DeviceInfo

    from .conftest import OpenEngine

CALLS = ((Queue, "submit"), (Queue, "submit_each"), (Memory, "allocate"), (Memory, "import_host"), (Memory, "free"))


class Watch:
    """Notes the calls of the driver that may take long, in the event loop's thread and in others."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.on_loop: list[str] = []
        self.in_threads: set[str] = set()
        self.calls_in_threads: set[str] = set()
        self._loop_thread = threading.get_ident()
        for owner, name in CALLS:
            patch.setattr(owner, name, self._noted(name, getattr(owner, name)))

    def _noted(self, name: str, call: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self._loop_thread:
                self.on_loop.append(f"{name} {kwargs.get('name', '')}")
            else:
                self.in_threads.add(name)
                self.calls_in_threads.add(f"{name} {kwargs.get('name', '')}")
            return call(*args, **kwargs)

        return noted


@pytest.mark.parametrize("scheme", [WeightScheme.INT8, WeightScheme.INT4])
async def test_no_conversion_waits_for_a_compiler_in_the_event_loop(
    scheme: WeightScheme, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, loop_thread = KernelLibrary._get, threading.get_ident()
    waited, asked = [], set()

    def noted(library: KernelLibrary, key: Any, *args: Any) -> Kernel:
        found = library._kernels.get(key)
        if threading.get_ident() == loop_thread:
            asked.add(key[0])
            if found is None or not found.done():
                waited.append(key[0])
        return get(library, key, *args)

    monkeypatch.setattr(KernelLibrary, "_get", noted)
    async with open_engine(weights=scheme) as engine:
        await engine.loaded()
        assert waited == []
        assert any(name.startswith("quantize") for name in asked)


@pytest.mark.parametrize("scheme", [WeightScheme.AUTO, WeightScheme.INT4])
async def test_a_load_allocates_and_submits_in_threads(
    scheme: WeightScheme, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    async with open_engine(weights=scheme) as engine:
        await engine.loaded()
    assert watch.on_loop == []
    assert watch.in_threads >= {"allocate", "submit_each"}


async def test_so_does_one_from_the_cache(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"weights": WeightScheme.INT4, "weight_cache": True}
    async with open_engine(**options) as engine:
        await engine.cache_settled()
    watch = Watch(monkeypatch)
    async with open_engine(**options) as engine:
        await engine.loaded()
        assert engine.progress.from_cache
    assert watch.on_loop == []
    assert watch.in_threads >= {"allocate", "submit", "submit_each"}  # `submit`: the checks of what was read


async def test_so_does_one_with_adapters(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, cases = next(iter(BLENDS.items()))
    loras = tuple(LoraSpec(write_adapter(name, case, tmp_path / case.name), case.weight) for case in cases)
    watch = Watch(monkeypatch)
    async with open_engine(name, loras=loras) as engine:
        await engine.loaded()
    assert watch.on_loop == []


async def test_so_does_one_whose_model_has_its_attention_elsewhere(
    open_engine: OpenEngine, device_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    async with open_engine(attention=AttentionTarget(AttentionKind.VULKAN, str(device_info.index))) as engine:
        await engine.loaded()
    assert watch.on_loop == []


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_requests_during_a_load_have_the_loop_submit_their_steps_and_do_nothing_else(
    elsewhere: bool, open_engine: OpenEngine, device_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = AttentionTarget(AttentionKind.VULKAN, str(device_info.index)) if elsewhere else AttentionTarget()
    gate, watch = LoadingGate(monkeypatch, HELD_FROM), Watch(monkeypatch)
    async with open_engine(attention=target) as engine:
        logits, answered = asyncio.create_task(engine.logits(PROMPT)), asyncio.create_task(answer(engine, max_tokens=2))
        await some_layers(engine)
        gate.open()
        await asyncio.gather(logits, answered)
        await engine.loaded()
    assert {call.strip() for call in watch.on_loop} <= {"submit", "submit_each"}
    assert "allocate evaluation logits" in watch.calls_in_threads


async def test_so_does_one_that_is_closed_half_way(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    LoadingGate(monkeypatch, HELD_FROM)
    async with open_engine(weights=WeightScheme.INT8) as engine:
        await some_layers(engine)
    assert watch.on_loop == []
