from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.server.ws_client import connected
from unicorn_async.server import ServerOptions
from unicorn_async.server.access import Access
from unicorn_async.server.keys import ALL_RIGHTS, Right
from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from tests.server.conftest import Served, ServeWith

KEY = "sesame"
WITH_KEY = ServerOptions(api_key=KEY)


async def handshake_error(url: str, **options: Any) -> tuple[int, str]:
    """Return the status and the error's code that a handshake ends with."""
    with pytest.raises(InvalidStatus) as caught:
        async with connected(url, **options):
            pass
    response = caught.value.response
    return response.status_code, json.loads(response.body or b"{}")["error"]["code"]


async def test_http_wants_the_key(serve_with: ServeWith) -> None:
    async with serve_with(WITH_KEY) as served, httpx.AsyncClient(base_url=served.url) as client:
        refused = await client.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "missing_api_key")
        assert refused.headers["www-authenticate"] == "Bearer"
        refused = await client.get("/v1/models", headers={"authorization": "Bearer wrong"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (await client.get("/v1/models", headers={"authorization": f"bearer {KEY}"})).status_code == 200
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/")).status_code == 200


async def test_a_websocket_wants_the_key_in_its_header(serve_with: ServeWith) -> None:
    async with serve_with(WITH_KEY) as served:
        assert await handshake_error(served.ws_url) == (401, "missing_api_key")
        wrong = {"Authorization": "Bearer wrong"}
        assert await handshake_error(served.ws_url, additional_headers=wrong) == (401, "invalid_api_key")
        async with connected(served.ws_url, additional_headers={"Authorization": f"Bearer {KEY}"}) as client:
            await client.create()
            assert (await client.answer())[-1]["type"] == "response.completed"


async def test_a_browser_may_bring_the_key_in_its_first_frame(serve_with: ServeWith) -> None:
    async with serve_with(WITH_KEY) as served:
        async with connected(served.ws_url, origin=served.url) as client:
            await client.send({"type": "unicorn.auth", "key": KEY})
            assert (await client.receive())["type"] == "unicorn.authenticated"
            await client.create()
            assert (await client.answer())[-1]["type"] == "response.completed"
        for first in ({"type": "unicorn.auth", "key": "wrong"}, {"type": "response.create", "input": "Hi"}):
            async with connected(served.ws_url, origin=served.url) as client:
                await client.send(first)
                assert (await client.receive())["status"] == 401
                with pytest.raises(ConnectionClosed):
                    await client.receive()


async def test_a_key_that_nobody_asked_for_is_answered(serve_with: ServeWith) -> None:
    async with serve_with(ServerOptions()) as served, connected(served.ws_url) as client:
        await client.send({"type": "unicorn.auth", "key": "any"})
        assert (await client.receive())["type"] == "unicorn.authenticated"
    shown = {"Authorization": f"Bearer {KEY}"}
    async with serve_with(WITH_KEY) as served, connected(served.ws_url, additional_headers=shown) as client:
        await client.send({"type": "unicorn.auth", "key": "wrong"})
        assert (await client.receive())["status"] == 401
        await client.send({"type": "unicorn.auth", "key": KEY})
        assert (await client.receive())["type"] == "unicorn.authenticated"


async def test_a_browser_that_brings_no_key_is_sent_away(serve_with: ServeWith) -> None:
    options = ServerOptions(api_key=KEY, receive_timeout_s=0.05)
    async with serve_with(options) as served, connected(served.ws_url, origin=served.url) as client:
        assert (await client.receive())["status"] == 401


async def test_other_sites_pages_are_refused_where_there_is_no_key(served: Served) -> None:
    assert await handshake_error(served.ws_url, origin="https://evil.example") == (403, "foreign_origin")
    async with connected(served.ws_url, origin=served.url) as client:
        await client.create()
        assert (await client.answer())[-1]["type"] == "response.completed"
    async with httpx.AsyncClient(base_url=served.url) as client_http:
        refused = await client_http.post(
            "/v1/responses", content='{"input": "Hi"}', headers={"origin": "https://evil.example"}
        )
        assert refused.status_code == 403


@pytest.mark.parametrize(
    ("origin", "host", "is_allowed"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://localhost:8000", "LOCALHOST:8000", True),
        ("http://box:8000", "box:8000", True),
        ("http://box.local:8000", "box.local:8000", True),
        ("https://chat.example", "chat.example", True),
        ("http://rebound.example:8000", "rebound.example:8000", False),
        ("http://localhost:9000", "localhost:8000", False),
        ("null", "localhost:8000", False),
        ("null", "", False),
        ("http://[::1", "[::1", False),
    ],
)
def test_a_pages_origin_has_to_be_the_servers_own(origin: str, host: str, is_allowed: bool) -> None:
    access = Access(ServerOptions(allowed_hosts=("chat.example",)))
    headers = {"origin": origin, "host": host}
    if is_allowed:
        access.check(headers)
    else:
        with pytest.raises(ApiError):
            access.check(headers)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]:8000", "box", "box.local", "host.docker.internal", "chat.example"]
)
def test_a_client_without_an_origin_may_use_the_servers_own_names(host: str) -> None:
    Access(ServerOptions(allowed_hosts=("chat.example",))).check({"host": host})


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/fake-model", "/v1/responses/resp_1"])
async def test_a_page_cannot_read_from_the_server_under_a_name_of_its_own(served: Served, path: str) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:
        refused = await client.get(path, headers={"host": "rebound.example:8000"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_host")
        assert (await client.get(path)).status_code in (200, 404)


async def test_a_server_with_a_key_takes_any_host_name(serve_with: ServeWith) -> None:
    async with serve_with(WITH_KEY) as served, httpx.AsyncClient(base_url=served.url) as client:
        foreign = {"host": "chat.example", "authorization": f"Bearer {KEY}"}
        assert (await client.get("/health", headers=foreign)).status_code == 200
        assert (await client.get("/v1/models", headers=foreign)).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", None])
def test_behind_a_proxy_no_address_is_this_machines_own(host: str | None) -> None:
    assert Access(ServerOptions()).check({}, host, Right.MANAGE).rights == ALL_RIGHTS
    access = Access(ServerOptions(behind_proxy=True))
    assert access.check({}, host).rights == {Right.USE}
    for right in (Right.MANAGE, Right.METRICS):
        with pytest.raises(ApiError, match="through a proxy") as refused:
            access.check({}, host, right)
        assert refused.value.status == 403
    keyed = Access(ServerOptions(behind_proxy=True, api_key=KEY))
    assert keyed.check({"authorization": f"Bearer {KEY}"}, host, Right.MANAGE).rights == ALL_RIGHTS
