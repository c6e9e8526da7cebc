"""Streams among many connected clients: turns of both kinds are measured, and what fails ends the script."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.server import serve

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import connections

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection

    from unicorn_async.gpu.device import Device

SIZES = ["--clients", "5", "--streams", "2", "--seconds", "1", "--rounds", "1", "--tokens", "8"]


def take_time(patch: pytest.MonkeyPatch) -> None:
    """Have turns last until something was counted, however slow this machine is, and all requests end behind them."""
    made: list[connections.Gaps] = []
    new_gaps, get = connections.Gaps, connections.get

    def noted() -> connections.Gaps:
        made.append(new_gaps())
        return made[-1]

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        while made[-1].is_counting and not made[-1].seconds:
            await asyncio.to_thread(time.sleep, 0.05)

    async def get_at_the_end(*arguments: Any) -> Any:
        deadline = time.monotonic() + 120
        while (found := await get(*arguments))["stats"]["running"] and time.monotonic() < deadline:
            await asyncio.to_thread(time.sleep, 0.05)
        return found

    patch.setattr(connections, "Gaps", noted)
    patch.setattr(connections, "get", get_at_the_end)
    patch.setattr(connections, "asyncio", SimpleNamespace(**(vars(asyncio) | {"sleep": sleep})))


def test_both_kinds_of_turns_are_measured(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    cores = sorted(os.sched_getaffinity(0))
    flags = [f"--device={device.info.index}", f"--json={out}", "--cores", *map(str, cores)]
    monkeypatch.setattr(sys, "argv", ["connections.py", *SIZES, *flags])
    take_time(monkeypatch)
    connections.main()
    found = json.loads(out.read_text())
    assert ([turn["clients"] for turn in found["turns"]], found["running_after"]) == ([2, 5], 0)
    assert all(0 < turn["gap_p50"] <= turn["gap_p99"] <= turn["gap_max"] for turn in found["turns"])
    assert all(size > 0 for size in (found["memory_before"], found["memory_after"], found["turns"][1]["memory_bytes"]))
    said = capsys.readouterr().out
    assert device.info.name in said
    assert re.search(r"among 5 clients: gap p50 x \d+\.\d\d, p99 x \d+\.\d\d, tok/s x ", said)
    assert f"the server on cores {cores}" in said


def test_gaps_are_counted_between_the_deltas_of_a_turn() -> None:
    gaps = connections.Gaps()
    gaps.note(1.0, 2.0)
    gaps.is_counting = True
    gaps.note(0.0, 3.0)
    gaps.note(3.0, 3.5)
    assert (gaps.seconds, gaps.num_deltas) == ([0.5], 2)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"type": "error", "message": "busy"}, "expected an answer, got .*busy"),
        ({"type": "response.failed"}, "expected an answer, got .*failed"),
        (None, "a stream broke off: "),
    ],
)
async def test_a_stream_that_gets_no_answer_is_an_error(event: dict[str, str] | None, message: str) -> None:
    async def answer(socket: ServerConnection) -> None:
        await socket.recv()
        if event is not None:
            await socket.send(json.dumps(event))
            await socket.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(connections.ConnectionsError, match=message):
            await connections.stream(f"ws://127.0.0.1:{port}", 8, connections.Gaps())


async def test_clients_that_the_server_closes_are_an_error() -> None:
    gone = asyncio.Semaphore(0)

    async def close(socket: ServerConnection) -> None:
        await socket.close()
        gone.release()

    async with serve(close, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(connections.ConnectionsError, match="the server closed 3 of 3 connected clients"):
            async with connections.connected(f"ws://127.0.0.1:{port}", 3):
                for _ in range(3):
                    await gone.acquire()


async def test_clients_that_cannot_connect_are_an_error() -> None:
    with pytest.raises(connections.ConnectionsError, match="3 clients could not connect"):
        async with connections.connected("ws://127.0.0.1:1", 3):
            pytest.fail("nobody listens there")


def test_cores_that_are_not_there_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["connections.py", "--cores", "0", "99999"])
    with pytest.raises(SystemExit):
        connections.main()
    assert "--cores: expected some of [" in capsys.readouterr().err


def test_there_have_to_be_more_clients_than_streams(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["connections.py", "--clients", "64"])
    with pytest.raises(SystemExit):
        connections.main()
    assert "--clients: expected more than the 64 streams, got 64" in capsys.readouterr().err
