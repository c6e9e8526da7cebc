"""Other sites' pages that are let use the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.test_access import handshake_error
from tests.server.ws_client import connected
from unicorn_async.errors import ConfigError
from unicorn_async.server import ServerOptions
from unicorn_async.server.origin import parse_origin

if TYPE_CHECKING:
    from tests.server.conftest import ServeWith

PAGE = "https://chat.example"
ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}


async def test_a_listed_page_may_use_the_server_and_no_more(serve_with: ServeWith) -> None:
    options = ServerOptions(cors_origins=("https://Chat.example:443",))
    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:
        for origin, status, told in ((PAGE, 204, PAGE), ("https://evil.example", 403, None)):
            asked = await client.options("/v1/responses", headers={"origin": origin, **ASKS})
            assert (asked.status_code, asked.headers.get("access-control-allow-origin")) == (status, told)
        answer = await client.post("/v1/responses", json={"input": "Hi"}, headers={"origin": PAGE})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
        refused = await client.post("/v1/models/load", json={"model": "m"}, headers={"origin": PAGE})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "key_needed")
        async with connected(served.ws_url, origin=PAGE) as socket:
            await socket.create()
            assert (await socket.answer())[-1]["type"] == "response.completed"
        assert await handshake_error(served.ws_url, origin="https://evil.example") == (403, "foreign_origin")


async def test_no_page_is_listed_by_default(serve_with: ServeWith) -> None:
    async with serve_with(ServerOptions()) as served, httpx.AsyncClient(base_url=served.url) as client:
        asked = await client.options("/v1/responses", headers={"origin": PAGE, **ASKS})
        assert (asked.status_code, asked.json()["error"]["code"]) == (403, "foreign_origin")
        health = await client.get("/health", headers={"origin": PAGE})
        assert "access-control-allow-origin" not in health.headers


async def test_a_page_of_any_site_wants_a_key(serve_with: ServeWith) -> None:
    options = ServerOptions(cors_origins=("*",), api_key="sesame")
    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:
        refused = await client.get("/v1/models", headers={"origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "",
        "null",
        "chat.example",
        "https://chat.example/",
        "https://*.example",
        "https://user@chat.example",
        "https://chat.example\n",
        "https://",
        "https://chat..example",
        "https://.example",
        f"https://{'a' * 64}.example",
        "https://" + "a." * 126 + "ab",
        "https://chat.example:0",
        "https://chat.example:080",
        "https://chat.example:65536",
        "https://chat.example:",
        "https://b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example",
        "https://\N{KELVIN SIGN}.example",
        "https://chat%2eexample",
        "https://chat.example,https://other.example",
        "https://1.2.3",
        "https://1.2.3.256",
        "https://01.2.3.4",
        "https://1.2.3.4.",
        "https://0x7f000001",
        "https://[::1",
        "https://[1::2::3]",
        "https://[0:0:0:0:0:0:0:1]",
        "https://[::ffff:1.2.3.4]",
        "https://[1::2:0:0:0:3]",
        "file://chat.example",
        "ws://chat.example",
    ],
)
def test_what_no_browser_sends_is_refused_by_name(origin: str) -> None:
    with pytest.raises(ConfigError, match="cors origin"):
        ServerOptions(cors_origins=(origin,))


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("*", "*"),
        ("HTTPS://Chat.Example", "https://chat.example"),
        ("https://chat.example:443", "https://chat.example"),
        ("https://chat.example:80", "https://chat.example:80"),
        ("http://chat.example:80", "http://chat.example"),
        ("http://chat.example:65535", "http://chat.example:65535"),
        ("http://chat.example.", "http://chat.example."),
        ("http://my_host", "http://my_host"),
        ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example"),
        ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("http://[::]", "http://[::]"),
        ("http://[2001:DB8:10:0:1::1]", "http://[2001:db8:10:0:1::1]"),
        ("http://[::ffff:102:304]", "http://[::ffff:102:304]"),
        ("http://[1:0:2:3:4:5:6:7]", "http://[1:0:2:3:4:5:6:7]"),
        ("http://[1::2:0:0:3]", "http://[1::2:0:0:3]"),
        ("chrome-extension://nmmhkkegccagdldgiimedpiccmgmieda", "chrome-extension://nmmhkkegccagdldgiimedpiccmgmieda"),
        ("tauri://localhost", "tauri://localhost"),
    ],
)
def test_an_origin_is_kept_as_browsers_send_it(text: str, origin: str) -> None:
    assert parse_origin(text) == origin
