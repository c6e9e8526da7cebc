"""What becomes of a server whose engine fails while it serves."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from tests.server.fake_library import FakeLibrary, prepared
from unicorn_async.errors import DeviceLostError, EngineFailedError, OutOfMemoryError, TokenizerLostError
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server import restarts
from unicorn_async.server.model_host import ModelHost
from unicorn_async.server.model_state import ModelState, ModelStatus
from unicorn_async.server.options import ServerOptions
from unicorn_async.server.protocol.errors import ApiError, describe_error
from unicorn_async.server.restarts import Restarts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unicorn_async.grammar import Grammar

LOST = DeviceLostError("the driver gave up")


@pytest.fixture
async def host(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ModelHost]:
    """A host that serves "a", and opens it again at once when it fails."""
    monkeypatch.setattr(restarts, "_FIRST_S", 0.0)
    async with ModelHost(library, max_restarts=2) as entered:
        await entered.begin(prepared("a")).done()
        yield entered
    assert library.num_open == 0


async def until(host: ModelHost, *statuses: ModelStatus) -> ModelState:
    async for state in host.watch():
        if state.status in statuses:
            return state
    raise AssertionError


async def test_an_engine_that_fails_is_logged_and_opened_again(
    host: ModelHost, library: FakeLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    library.engines[0].failed.set_result(LOST)
    assert (await until(host, ModelStatus.CLOSING)).error == "the driver gave up"
    assert (await until(host, ModelStatus.OPENING)).error == "the driver gave up"
    state = await until(host, ModelStatus.READY)
    assert (len(library.engines), state.error) == (2, None)
    assert (await host.model("a")).engine is library.engines[1]
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "its engine has failed" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is LOST


async def test_answers_under_way_end_with_the_failure_as_the_server_s_fault(
    host: ModelHost, library: FakeLibrary
) -> None:
    model = await host.model()
    library.engines[0].hold[0] = asyncio.Event()
    generation = await model.generate(model.engine.stream([1], SamplingParams()), keepalive_s=5)
    library.engines[0].failed.set_result(EngineFailedError("OSError: /home/me/secret: too many open files"))
    await until(host, ModelStatus.CLOSING)
    await asyncio.sleep(0)
    assert generation.cancelled
    with pytest.raises(ApiError, match="the engine of 'a' has failed") as caught:
        await model.generate(model.engine.stream([1], SamplingParams()), keepalive_s=5)
    assert (caught.value.status, caught.value.code) == (503, "engine_failed")
    assert "secret" not in str(caught.value) or "/home/me" not in str(caught.value)
    await generation.close()
    await until(host, ModelStatus.READY)


async def test_an_engine_that_fails_again_and_again_is_given_up(host: ModelHost, library: FakeLibrary) -> None:
    library.fail_open["a"] = OutOfMemoryError("2 GiB needed")
    library.engines[0].failed.set_result(LOST)
    async for state in host.watch():
        if state.status is ModelStatus.FAILED and state.retry_s is None:
            break
    assert (state.error, state.has_served) == ("2 GiB needed", True)
    with pytest.raises(ApiError, match="has failed: 2 GiB needed") as caught:
        await host.model()
    assert caught.value.status == 503
    del library.fail_open["a"]
    await host.begin(prepared("a")).done()  # who asks for the model gets another attempt


async def test_a_failed_engine_s_model_gives_way_to_another(host: ModelHost, library: FakeLibrary) -> None:
    library.hold_open["a"] = asyncio.Event()
    library.engines[0].failed.set_result(LOST)
    await until(host, ModelStatus.OPENING)
    await host.begin(prepared("b")).done()
    assert host.state == ModelState(ModelStatus.READY, "b", await host.model())


def test_waits_double_up_to_a_minute_and_begin_anew_after_a_sound_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(restarts.time, "monotonic", lambda: now)
    row = Restarts()
    assert not row.have_begun
    row.note_ready()
    assert [row.note_failure() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    row.note_ready()
    now = 599.0
    assert row.note_failure() == 60
    row.note_ready()
    now = 1200.0
    assert row.note_failure() == 1
    assert [Restarts(1).note_failure(), Restarts(0).note_failure()] == [1, None]


async def test_health_and_ready_tell_of_a_failed_engine_and_requests_get_503_with_the_time_to_ask_again() -> None:
    engine = FakeEngine()
    async with serving(engine, ServerOptions()) as served, httpx.AsyncClient(base_url=served.url) as client:
        assert (await client.get("/ready")).json() == {"ready": True, "status": "ready"}
        engine.failed.set_result(LOST)
        while (health := await client.get("/health")).json()["status"] != "error":
            assert health.status_code in (200, 503)
        assert health.status_code == 503
        assert health.json()["error"] == "the driver gave up"
        assert (await client.get("/ready")).status_code == 503
        refused = await client.post("/v1/responses", json={"input": "hi"})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_failed"
    assert refused.headers["retry-after"] == "1"


async def test_a_whole_answer_that_an_engine_s_failure_ends_is_refused_with_the_time_to_ask_again() -> None:
    engine = FakeEngine()
    engine.hold[0] = asyncio.Event()
    async with serving(engine, ServerOptions()) as served, httpx.AsyncClient(base_url=served.url) as client:
        asked = asyncio.create_task(client.post("/v1/responses", json={"input": "hi"}))
        await engine.called.wait()
        engine.failed.set_result(LOST)
        refused = await asked
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_failed")
    assert refused.headers["retry-after"] == "1"


async def test_a_grammar_that_meets_a_failed_engine_is_refused_with_the_time_to_ask_again() -> None:
    class Failing(FakeEngine):
        async def check_grammar(self, grammar: Grammar, *, client: str = "") -> None:
            self.failed.set_result(LOST)
            raise LOST

    wanted = {"input": "hi", "text": {"format": {"type": "json_object"}}}
    async with serving(Failing(), ServerOptions()) as served, httpx.AsyncClient(base_url=served.url) as client:
        refused = await client.post("/v1/responses", json=wanted)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_failed")
    assert refused.headers["retry-after"] == "1"


def test_a_lost_tokenizer_is_the_server_s_fault() -> None:
    assert describe_error(TokenizerLostError("the tokenizer's process has ended")).status == 503
