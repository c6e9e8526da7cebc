"""The file of keys is read again at SIGHUP, where that can't mean that a terminal was closed."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.conftest import serving
from tests.server.ws_client import connected, text_of
from unicorn_async.server import ServerOptions, signals
from unicorn_async.server.access import Access
from unicorn_async.server.keys import ApiKey, Right, read_keys
from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

ASK = {"input": "Hi"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("anna a-1 use\nben b-1 use\n")
    return path


@pytest.fixture
def without_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "has_terminal", lambda: False)


def options_of(file: Path) -> ServerOptions:
    return ServerOptions(api_key="own", api_keys=read_keys(file), api_key_file=file)


def hang_up(file: Path, text: str) -> None:
    file.write_text(text)
    os.kill(os.getpid(), signal.SIGHUP)


def to_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


async def renewed(client: httpx.AsyncClient, file: Path, text: str) -> dict[str, object]:
    """Have other keys read, and return what /health says once the server has read them, or could not."""
    before = (await client.get("/health")).json()["keys"]
    hang_up(file, text)
    while (now := (await client.get("/health")).json()["keys"]) == before:
        pass
    found: dict[str, object] = now
    return found


async def status(client: httpx.AsyncClient, key: str) -> int:
    return (await client.post("/v1/responses", json=ASK, headers=bearer(key))).status_code


@pytest.mark.usefixtures("without_terminal")
async def test_renewed_keys_count_from_the_next_request_on(file: Path, engine: FakeEngine) -> None:
    hold = engine.hold[1] = asyncio.Event()
    async with serving(engine, options_of(file)) as served, httpx.AsyncClient(base_url=served.url) as client:
        running = asyncio.create_task(client.post("/v1/responses", json=ASK, headers=bearer("a-1")))
        await engine.called.wait()
        assert await renewed(client, file, "ben b-1 use\ncleo c-1 use\n") == {"renewals": 1, "error": None}
        hold.set()
        assert (await running).json()["status"] == "completed"
        assert [await status(client, key) for key in ("a-1", "b-1", "c-1", "own")] == [401, 200, 200, 200]


@pytest.mark.usefixtures("without_terminal")
async def test_a_file_that_cant_be_used_leaves_the_keys_as_they_were(
    file: Path, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(engine, options_of(file)) as served, httpx.AsyncClient(base_url=served.url) as client:
        for text in ("anna a-1 everything\n", "", "anna own use\n", "anna a-2\0 use\n"):
            told = await renewed(client, file, text)
            assert "the server's log has the reason" in str(told["error"])
            assert str(file) not in str(told)
            assert [await status(client, key) for key in ("a-1", "b-1", "own")] == [200, 200, 200]
            assert (await renewed(client, file, "anna a-1 use\nben b-1 use\n"))["error"] is None
        to_a_pipe(file)
        before = (await client.get("/health")).json()["keys"]
        os.kill(os.getpid(), signal.SIGHUP)
        while (told := (await client.get("/health")).json()["keys"]) == before:
            pass
        assert "the server's log has the reason" in str(told["error"])
    assert "keys: expected a file, got something else" in caplog.text
    assert "keys, line 1: expected use, manage, metrics" in caplog.text
    assert "b-1" not in caplog.text


@pytest.mark.usefixtures("without_terminal")
async def test_a_name_keeps_its_responses_under_a_new_key_and_nothing_of_what_was_computed_for_the_old_one(
    file: Path, engine: FakeEngine
) -> None:
    async with serving(engine, options_of(file)) as served, httpx.AsyncClient(base_url=served.url) as client:
        kept = (await client.post("/v1/responses", json=ASK, headers=bearer("a-1"))).json()["id"]
        begun = await client.post("/v1/responses", json={**ASK, "background": True}, headers=bearer("a-1"))
        names = (kept, begun.json()["id"])
        async with asyncio.timeout(120):
            while '"completed"' not in (await client.get(f"/v1/responses/{names[1]}", headers=bearer("a-1"))).text:
                pass
        await renewed(client, file, "anna a-2 use\nben b-1 use\n")
        for response_id in names:
            found = [
                (await client.get(f"/v1/responses/{response_id}", headers=bearer(key))).status_code
                for key in ("a-1", "a-2", "b-1", "own")
            ]
            assert found == [401, 200, 404, 404], response_id
        further = {**ASK, "previous_response_id": kept}
        assert (await client.post("/v1/responses", json=further, headers=bearer("a-2"))).status_code == 200
    first, second, third = (call.cache_salt for call in engine.calls)
    assert first == second != third


@pytest.mark.usefixtures("without_terminal")
async def test_an_open_websocket_asks_with_the_key_as_it_is_by_then(file: Path, engine: FakeEngine) -> None:
    hold = engine.hold[1] = asyncio.Event()
    async with (
        serving(engine, options_of(file)) as served,
        httpx.AsyncClient(base_url=served.url) as client,
        connected(served.ws_url, additional_headers=bearer("a-1")) as anna,
        connected(served.ws_url, additional_headers=bearer("b-1")) as ben,
    ):
        for socket in (anna, ben):
            await socket.create(stream_id="a")
            await socket.until("response.output_text.delta")
        await renewed(client, file, "anna a-2 use\nben b-1 metrics\n")
        for socket, code, wanted in ((anna, 401, "invalid_api_key"), (ben, 403, "no_right")):
            await socket.create(stream_id="b")
            error = await socket.receive()
            assert (error["status"], error["stream_id"], error["error"]["code"]) == (code, "b", wanted)
        hold.set()
        for socket in (anna, ben):
            events = await socket.answer()
            assert (events[-1]["type"], text_of(events)) == ("response.completed", " there, friend")
        assert len(engine.calls) == 2


async def ended(served: Served) -> None:
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.wait_for(asyncio.shield(served.task), 120)


async def test_a_terminal_that_is_closed_ends_the_server(
    file: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "has_terminal", lambda: True)
    async with serving(engine, options_of(file)) as served:
        await ended(served)


@pytest.mark.usefixtures("without_terminal")
async def test_without_a_file_of_keys_a_hangup_ends_the_server_as_ever(engine: FakeEngine) -> None:
    async with serving(engine, ServerOptions(api_key="own")) as served:
        await ended(served)


async def test_a_server_that_outlives_its_terminal_reads_its_keys_again(
    file: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "has_terminal", lambda: True)
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        async with serving(engine, options_of(file)) as served, httpx.AsyncClient(base_url=served.url) as client:
            assert (await renewed(client, file, "cleo c-1 use\n"))["renewals"] == 1
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, earlier)


def test_a_key_that_comes_back_is_a_new_one_and_one_that_stays_is_the_same() -> None:
    keys = (ApiKey("anna", "a-1"), ApiKey("ben", "b-1"))
    access = Access(ServerOptions(api_keys=keys))
    anna, ben = (access.check(bearer(key.key)) for key in keys)
    access.renew((ApiKey("ben", "b-1", frozenset({Right.USE}), 3),))
    access.renew((ApiKey("anna", "a-1"), ApiKey("ben", "b-1", frozenset({Right.USE}), 3)))
    with pytest.raises(ApiError, match="any more"):
        access.still(anna)
    assert (access.still(ben).max_requests, access.still(ben).rights) == (3, {Right.USE})
    assert access.still(access.check(bearer("a-1"))).name == "anna"


ASKED = """
import fcntl, sys, termios
from unicorn_async.server.signals import has_terminal
if sys.argv[1] == "terminal":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
print(has_terminal())
"""


@pytest.mark.parametrize("kind", ["terminal", "none"])
def test_a_process_knows_whether_it_belongs_to_a_terminal(kind: str) -> None:
    ours, its = pty.openpty()
    try:
        told = subprocess.run(
            [sys.executable, "-c", ASKED, kind],
            stdin=its, stdout=subprocess.PIPE, start_new_session=True, text=True, check=True,
        ).stdout  # fmt: skip
    finally:
        os.close(ours)
        os.close(its)
    assert told == f"{kind == 'terminal'}\n"
