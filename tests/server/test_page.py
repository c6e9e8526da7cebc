"""The chat page's files over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.conftest import serving
from unicorn_async.errors import ConfigError
from unicorn_async.server import ServerOptions
from unicorn_async.server.page import page_routes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.fake_engine import FakeEngine

SCRIPT = "app-0123456789ab.js"


@pytest.fixture
def options(tmp_path: Path) -> ServerOptions:
    for name, text in (("index.html", "<title>page"), (SCRIPT, "script"), (f"{SCRIPT}.gz", "short"), ("notes", "")):
        (tmp_path / name).write_text(text)
    return ServerOptions(web_dir=tmp_path)


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [("gzip, br", "gzip"), ("br;q=1, GZIP;q=0.5", "gzip"), ("gzip;q=0", None), ("identity", None)],
)
async def test_who_takes_gzip_gets_what_was_compressed_beforehand(
    engine: FakeEngine, options: ServerOptions, accepted: str, encoding: str | None
) -> None:
    headers = {"accept-encoding": accepted}
    async with (
        serving(engine, options) as served,
        httpx.AsyncClient(base_url=served.url) as client,
        client.stream("GET", f"/{SCRIPT}", headers=headers) as response,
    ):
        content = b"".join([chunk async for chunk in response.aiter_raw()])
    assert response.headers.get("content-encoding") == encoding
    assert response.headers["vary"] == "accept-encoding"
    assert content == (b"short" if encoding else b"script")


async def test_what_a_hash_names_is_kept_and_the_page_itself_is_asked_for_again(
    engine: FakeEngine, options: ServerOptions
) -> None:
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        plain = {"accept-encoding": "identity"}
        assert "immutable" in (await client.get(f"/{SCRIPT}", headers=plain)).headers["cache-control"]
        page = await client.get("/")
        assert (page.text, page.headers["cache-control"]) == ("<title>page", "no-cache")
        assert "require-trusted-types-for 'script'; trusted-types 'none'" in page.headers["content-security-policy"]
        assert (await client.get("/notes")).status_code == 404
        assert (await client.get(f"/{SCRIPT}.gz")).status_code == 404


def test_a_page_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: No such file"):
        page_routes(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"index.html: not found"):
        page_routes(tmp_path)
