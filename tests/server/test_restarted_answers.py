"""Background answers that a server was stopped amid: the next one with the same store tells of them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.background import TEXT, events_of, finished
from tests.server.conftest import serving
from unicorn_async.server import ServerOptions

if TYPE_CHECKING:
    from tests.server.fake_engine import FakeEngine

ASK = {"input": "Hi", "background": True}
PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.server.fake_engine import FakeEngine
from unicorn_async.server import ServerOptions, serve

async def main():
    engine = FakeEngine()
    engine.hold[1] = asyncio.Event()
    options = ServerOptions(store_file=Path(sys.argv[1]))
    await serve(engine, port=0, options=options, on_ready=lambda url: print(url, flush=True))

asyncio.run(main())
"""


async def tell_of_failure(client: httpx.AsyncClient, name: str, reason: str) -> None:
    found = (await client.get(f"/v1/responses/{name}")).json()
    assert (found["status"], found["error"]["code"], found["background"]) == ("failed", "server_error", True)
    assert reason in found["error"]["message"]
    events = events_of((await client.get(f"/v1/responses/{name}", params={"stream": "true"})).text)
    assert events[-1] == {"type": "response.failed", "sequence_number": len(events) - 1, "response": found}
    refused = await client.post("/v1/responses", json={"input": "Go on", "previous_response_id": name})
    assert refused.json()["error"]["code"] == "previous_response_failed"
    items = (await client.get(f"/v1/responses/{name}/input_items")).json()
    assert [item["content"][0]["text"] for item in items["data"]] == ["Hi"]
    assert (await client.post(f"/v1/responses/{name}/cancel")).json() == found


async def test_an_answer_amid_which_the_server_was_killed_has_failed_at_the_next(
    tmp_path: Path, engine: FakeEngine
) -> None:
    path = tmp_path / "a.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(path), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    async with httpx.AsyncClient(base_url=(await process.stdout.readline()).decode().strip()) as client:
        name = (await client.post("/v1/responses", json=ASK)).json()["id"]
        process.kill()
    await process.wait()
    async with (
        serving(engine, ServerOptions(store_file=path)) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        await tell_of_failure(client, name, "the server was stopped before this answer had ended")
        assert (await client.delete(f"/v1/responses/{name}")).status_code == 200
        assert (await client.get(f"/v1/responses/{name}")).status_code == 404


async def test_an_answer_that_a_server_ends_with_itself_has_failed_at_the_next(
    tmp_path: Path, engine: FakeEngine
) -> None:
    options = ServerOptions(store_file=tmp_path / "a.db")
    engine.hold[1] = asyncio.Event()
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        name = (await client.post("/v1/responses", json=ASK)).json()["id"]
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        await tell_of_failure(client, name, "the server is shutting down")


async def test_an_answer_under_way_is_not_told_of_as_if_it_had_failed(tmp_path: Path, engine: FakeEngine) -> None:
    options = ServerOptions(store_file=tmp_path / "a.db", max_stored=1)
    hold = engine.hold[1] = asyncio.Event()
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        name = (await client.post("/v1/responses", json=ASK)).json()["id"]
        assert (await client.get(f"/v1/responses/{name}")).json()["status"] == "in_progress"
        hold.set()
        ended = await finished(client, name)
        await client.post("/v1/responses", json={"input": "Another"})  # memory has that alone now
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        assert (await client.get(f"/v1/responses/{name}")).json() == ended
        query = {"stream": "true", "starting_after": "3"}
        refused = await client.get(f"/v1/responses/{name}", params=query)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "events_not_kept")
        rest = events_of((await client.get(f"/v1/responses/{name}", params={**query, "skip_missing": "true"})).text)
        assert rest[0]["sequence_number"] == 4
        assert rest[-1]["response"]["output"][0]["content"][0]["text"] == TEXT


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_answer_that_is_deleted_under_way_is_not_there_after_a_restart(
    tmp_path: Path, engine: FakeEngine, restarts: bool
) -> None:
    options = ServerOptions(store_file=tmp_path / "a.db", keep_events_s=600)
    engine.hold[1] = asyncio.Event()
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        name = (await client.post("/v1/responses", json=ASK)).json()["id"]
        assert (await client.delete(f"/v1/responses/{name}")).status_code == 200
        if not restarts:
            assert (await client.get(f"/v1/responses/{name}")).status_code == 404
            return
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        assert (await client.get(f"/v1/responses/{name}")).status_code == 404
