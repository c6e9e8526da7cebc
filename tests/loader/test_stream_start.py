"""What a load does first: its reads, and beside them the kernels that convert what is read."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.errors import CheckpointError
from unicorn_async.weights.chunk import Transform

from .loading import hold_reads

if TYPE_CHECKING:
    from .loading import Loading


async def test_conversions_are_prepared_once_in_a_thread_and_copies_do_without(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    convert = loading.convert

    def prepare() -> None:
        events.append("prepared" if threading.current_thread() is not threading.main_thread() else "in the loop")

    def noted(*args: Any) -> None:
        events.append("converted")
        convert(*args)

    monkeypatch.setattr(loading, "convert", noted)
    stream = loading.stream(prepare=prepare)
    await stream.run()
    assert events[:2] == ["prepared", "converted"]
    assert set(events[2:]) == {"converted"}
    await stream.close()
    events.clear()
    copies = replace(
        loading.plan, chunks=tuple(chunk for chunk in loading.plan.chunks if chunk.transform is Transform.COPY)
    )
    stream = loading.stream(plan=copies, prepare=prepare)
    await stream.run()
    assert events == []
    await stream.close()


async def test_conversions_are_prepared_and_others_told_to_go_on_while_the_first_bytes_are_read(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = threading.Event()
    hold_reads(monkeypatch, 0)
    stream = loading.stream(prepare=prepared.set)
    assert not stream.begun.is_set()
    run = asyncio.create_task(stream.run())
    await stream.begun.wait()
    assert await asyncio.to_thread(prepared.wait, 120)
    assert stream.progress.bytes_loaded == 0
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await stream.close()


async def test_who_waits_for_a_load_to_begin_goes_on_where_it_can_not(loading: Loading) -> None:
    loading.checkpoint.files[0].unlink()
    stream = loading.stream()
    with pytest.raises(CheckpointError):
        await stream.run()
    assert stream.begun.is_set()
    await stream.close()
