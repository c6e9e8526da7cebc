"""The trace of an engine's load, and how the engine says that it reads."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from unicorn_async.cache.lookup import CacheState
from unicorn_async.config import WeightScheme
from unicorn_async.errors import ConfigError
from unicorn_async.gpu.queue import Queue
from unicorn_async.loader.read_strategy import ReadMode
from unicorn_async.loader.trace import LoadTrace

from .answers import answer
from .loading_gate import HELD_FROM, LoadingGate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from unicorn_async.gpu.queue import Submission

    from .conftest import OpenEngine


async def test_the_trace_of_a_load_is_written_when_it_is_loaded(open_engine: OpenEngine, tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    async with open_engine(load_trace=path) as engine:
        await engine.loaded()
        num_layers = engine.model_spec.num_layers + 2
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(event["args"]["bytes"] for event in events if event["ph"] == "X") == engine.progress.bytes_total
    assert sum(event["ph"] == "b" and event["cat"] == "layer" for event in events) == num_layers


async def test_the_trace_has_all_the_time_in_which_the_driver_is_handed_work(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls, spans = tmp_path / "load.json", [], []
    submit_each, submission = Queue.submit_each, LoadTrace.submission

    def timed(queue: Queue, submissions: Sequence[Submission]) -> list[int]:
        started = time.perf_counter_ns()
        values = submit_each(queue, submissions)
        calls.append((started, time.perf_counter_ns(), len(submissions)))
        return values

    def noted(trace: LoadTrace, name: str, started: int, ended: int) -> None:
        spans.append((started, ended))
        submission(trace, name, started, ended)

    monkeypatch.setattr(Queue, "submit_each", timed)
    monkeypatch.setattr(LoadTrace, "submission", noted)
    async with open_engine(load_trace=path, weights=WeightScheme.INT8) as engine:
        await engine.cache_settled()  # the load has ended, and the trace is written
    assert calls
    for started, ended, count in calls:
        assert sum(first <= started and ended <= last for first, last in spans) >= count
    events = json.loads(path.read_text())["traceEvents"]
    handed = {(event["name"], event["ts"]) for event in events if event["ph"] == "e" and event["cat"] == "submit"}
    begun = {(event["name"], event["ts"]) for event in events if event["ph"] == "b" and event["cat"] == "conversion"}
    assert begun
    assert begun <= handed  # one follows the other without a gap


async def test_a_load_that_is_cancelled_has_a_trace_too(open_engine: OpenEngine, tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    async with open_engine(load_trace=path):
        pass
    assert "traceEvents" in json.loads(path.read_text())


async def test_a_trace_that_can_not_be_written_is_an_error_at_once(open_engine: OpenEngine, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="load trace"):
        async with open_engine(load_trace=tmp_path / "none" / "load.json"):
            pass


async def test_a_trace_that_can_not_be_written_at_the_end_is_a_warning(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "traces"
    folder.mkdir()
    gate = LoadingGate(monkeypatch, HELD_FROM)
    async with open_engine(load_trace=folder / "load.json", weights=WeightScheme.INT8, weight_cache=True) as engine:
        folder.rename(tmp_path / "elsewhere")
        gate.open()
        cache = await engine.cache_settled()
        await answer(engine, max_tokens=2)
    assert cache.state is CacheState.WRITTEN
    assert f"load trace {folder / 'load.json'}: No such file" in caplog.text


async def test_a_pipe_that_nobody_reads_from_holds_up_neither_load_nor_end(
    open_engine: OpenEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with asyncio.timeout(240), open_engine(load_trace=pipe) as engine:
        await engine.loaded()
        await answer(engine, max_tokens=2)
    assert f"load trace {pipe}: No such device or address; the load itself is not affected" in caplog.text


async def test_an_engine_says_how_it_reads(open_engine: OpenEngine) -> None:
    async with open_engine(num_reader_threads=3) as engine:
        strategy = engine.read_strategy
        await engine.loaded()
    assert strategy.num_threads == 3
    assert strategy.mode in ReadMode
    assert "3 threads" in strategy.text()
