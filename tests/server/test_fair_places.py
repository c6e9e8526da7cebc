"""Over HTTP, beside a client who had every place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

import unicorn_async
from tests.engine.conftest import device_info, model_directory, open_engine
from tests.server.conftest import serving
from unicorn_async.server import ServerOptions
from unicorn_async.server.keys import ApiKey

if TYPE_CHECKING:
    from tests.engine.conftest import OpenEngine

__all__ = ["device_info", "model_directory", "open_engine"]  # fixtures

DEMO = Path(unicorn_async.__file__).parent / "demo" / "model"
KEYS = (ApiKey("anna", "a"), ApiKey("ben", "b"))


async def ask(client: httpx.AsyncClient, key: str, num_tokens: int, begun: asyncio.Semaphore) -> int:
    """Return how many events an answer's stream has; the first one releases `begun`."""
    body = {"prompt": "One day", "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    headers, num_events = {"authorization": f"Bearer {key}"}, 0
    async with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        async for line in response.aiter_lines():
            num_events += line.startswith("data: {")
            if num_events == 1:
                begun.release()
    return num_events


async def test_a_short_answer_comes_before_any_of_a_client_who_had_all_places(open_engine: OpenEngine) -> None:
    async with (
        open_engine(DEMO, model_name="demo", max_context=2048, max_num_seqs=4) as engine,
        serving(engine, ServerOptions(api_keys=KEYS)) as served,
        httpx.AsyncClient(base_url=served.url, timeout=None) as client,
    ):
        await engine.loaded()
        begun = asyncio.Semaphore(0)
        annas = [asyncio.create_task(ask(client, "a", 1500, begun)) for _ in range(12)]
        for _ in range(4):
            await begun.acquire()
        assert await ask(client, "b", 5, begun) > 0
        assert not any(task.done() for task in annas)
        assert engine.stats().fair_preemptions == 1
        metrics = await client.get("/metrics", headers={"authorization": "Bearer a"})
        assert "unicorn_engine_fair_preemptions_total 1\n" in metrics.text
        for task in annas:
            task.cancel()
        await asyncio.wait(annas)
