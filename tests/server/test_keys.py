"""Keys with names and rights, and the file that they come from."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.ws_client import connected
from unicorn_async.cli.log_format import TextFormatter
from unicorn_async.errors import ConfigError
from unicorn_async.server import ServerOptions
from unicorn_async.server.access import Access
from unicorn_async.server.client import client_at
from unicorn_async.server.keys import ApiKey, Right, read_keys
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.request_context import current

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.conftest import ServeWith
    from tests.server.fake_engine import FakeEngine


def test_a_file_has_keys_with_names_rights_and_limits(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\nanna  s-1 use manage\nben s-2 use max_requests=4  # a comment\ns-3\nmon s-4 metrics\n")
    assert read_keys(file) == (
        ApiKey("anna", "s-1", frozenset({Right.USE, Right.MANAGE})),
        ApiKey("ben", "s-2", frozenset({Right.USE}), 4),
        ApiKey("key 8252abfa", "s-3"),
        ApiKey("mon", "s-4", frozenset({Right.METRICS})),
    )
    assert "s-1" not in repr(read_keys(file))


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbf# Keys\nanna s-1 use\n")
    assert read_keys(file) == (ApiKey("anna", "s-1", frozenset({Right.USE})),)


def test_a_key_without_a_name_is_the_same_client_wherever_its_line_stands(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("s-1\ns-2\n")
    first, second = read_keys(file)
    file.write_text("# one has gone\n\ns-2\n")
    assert read_keys(file) == (second,)
    assert first.name != second.name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["got none"]),
        (b"# only this\n", ["got none"]),
        (b"anna s-1 everything\n", ["line 1", "use, manage, metrics", "anna"]),
        (b"anna s-1 max_requests=0\n", ["line 1", "'0'"]),
        (b"anna s-1\nanna s-2\n", ["anna", "twice"]),
        (b"anna s-1\nben s-1\n", ["two names"]),
        (b"anna s-1\xff\n", ["not UTF-8"]),
        (b"anna s-1\0\n", ["anna", "control characters"]),
        (b"anna s-1\x7f use\n", ["anna", "control characters"]),
        (b"\x01s-1\n", ["control characters"]),
        (b"ben s-2 use\ns-1 use\n", ["line 2", "the right 'use'", "NAME KEY RIGHTS"]),
        (b"s-1 Metrics use\n", ["line 1", "the right 'metrics'", "NAME KEY RIGHTS"]),
        (b"s-1 max_requests=4\n", ["line 1", "max_requests", "NAME KEY RIGHTS"]),
        (b"s-1 # of anna\n", ["line 1", "a comment"]),
        (b"manage\n", ["line 1", "the right 'manage'", "NAME KEY RIGHTS"]),
    ],
)
def test_a_file_that_is_wrong_is_refused_without_a_key_in_the_message(
    tmp_path: Path, content: bytes, words: list[str]
) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        ServerOptions(api_keys=read_keys(file))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "s-1" not in str(caught.value)


def test_a_key_of_the_environment_that_is_no_text_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="API key 'api_key': not UTF-8") as caught:
        ServerOptions(api_key=b"s-1\xff".decode("utf-8", "surrogateescape"))
    assert caught.value.__cause__ is None and "s-1" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-file"):
        read_keys(tmp_path / "no-file")


async def test_a_key_is_good_for_its_rights_alone(serve_with: ServeWith) -> None:
    keys = (
        ApiKey("anna", "a", frozenset({Right.USE})),
        ApiKey("boss", "b"),
        ApiKey("mon", "m", frozenset({Right.METRICS})),
    )
    async with serve_with(ServerOptions(api_keys=keys)) as served, httpx.AsyncClient(base_url=served.url) as client:

        async def ask(path: str, key: str, body: str) -> tuple[int, str]:
            response = await client.post(path, content=body, headers={"authorization": f"Bearer {key}"})
            return response.status_code, (response.json().get("error") or {}).get("code", "")

        load = ("/v1/models/load", json.dumps({"model": "other"}))
        assert await ask(load[0], "a", load[1]) == (403, "no_right")
        assert (await ask(load[0], "b", load[1]))[1] not in ("no_right", "invalid_api_key")
        assert (await ask("/v1/responses", "a", '{"input": "Hi"}'))[0] == 200
        assert await ask("/v1/responses", "m", '{"input": "Hi"}') == (403, "no_right")


async def test_a_key_with_letters_beyond_ascii_is_taken_in_both_encodings(serve_with: ServeWith) -> None:
    key = "schlüssel"
    async with serve_with(ServerOptions(api_key=key)) as served, httpx.AsyncClient(base_url=served.url) as client:
        for spelling in (key.encode(), key.encode("latin-1")):
            headers = [(b"authorization", b"Bearer " + spelling)]
            assert (await client.get("/v1/models", headers=headers)).status_code == 200
        wrong = [(b"authorization", b"Bearer schlussel")]
        assert (await client.get("/v1/models", headers=wrong)).status_code == 401
        async with connected(served.ws_url, origin=served.url) as socket:
            await socket.send({"type": "unicorn.auth", "key": key})
            assert (await socket.receive())["type"] == "unicorn.authenticated"


def test_without_a_key_models_are_managed_from_this_machine_alone() -> None:
    access = Access(ServerOptions())
    headers = {"host": "10.0.0.1:8000"}
    for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1", None):
        assert Right.MANAGE in access.check(headers, host, Right.MANAGE).rights
    for host in ("10.0.0.7", "2001:db8::7", "::ffff:10.0.0.7"):
        assert access.check(headers, host).rights == {Right.USE}
        for right in (Right.MANAGE, Right.METRICS):
            with pytest.raises(ApiError, match="needs an API key") as caught:
                access.check(headers, host, right)
            assert (caught.value.status, caught.value.code) == (403, "key_needed")


def test_addresses_of_one_network_are_one_client() -> None:
    assert client_at("2001:db8::1") == client_at("2001:db8::2:2") != client_at("2001:db8:0:1::1")
    assert client_at("::ffff:10.0.0.7") == client_at("10.0.0.7") != client_at("10.0.0.8")


async def test_a_refusal_is_a_line_of_the_log_without_a_traceback(
    serve_with: ServeWith, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_with(ServerOptions(api_key="sesame")) as served, httpx.AsyncClient(base_url=served.url) as client:
        with caplog.at_level(logging.WARNING):
            assert (await client.get("/v1/models", headers={"authorization": "Bearer open"})).status_code == 401
            with pytest.raises(Exception, match="401"):
                async with connected(served.ws_url):
                    pass
            async with connected(served.ws_url, origin=served.url) as socket:
                await socket.send({"type": "unicorn.auth", "key": "wrong"})
                assert (await socket.receive())["type"] == "error"
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 3, [record.getMessage() for record in lines]
    assert all("127.0.0.1" in line.getMessage() and not line.exc_info for line in lines)
    assert not any(word in line.getMessage() for line in lines for word in ("sesame", "Bearer"))


async def test_the_log_names_whose_key_asks(serve_with: ServeWith) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(TextFormatter(current.get).format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("unicorn_async.server.observer")
    logger.addHandler(handler)
    level, header = logger.level, {"authorization": "Bearer s-1"}
    logger.setLevel(logging.INFO)
    try:
        async with serve_with(ServerOptions(api_keys=(ApiKey("anna", "s-1"),))) as served:
            async with httpx.AsyncClient(base_url=served.url, headers=header) as client:
                await client.get("/v1/models")
                await client.get("/v1/models", headers={"authorization": "Bearer other"})
            async with connected(served.ws_url, additional_headers=header):
                pass
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert ["anna at 127.0.0.1:" in line for line in lines] == [True, False, True], lines


def test_a_new_key_under_an_old_name_finds_nothing_that_was_computed_for_the_old_one() -> None:
    salts = set()
    for keys in ((ApiKey("guest", "old"),), (ApiKey("guest", "new"),)):
        access = Access(ServerOptions(api_keys=keys))
        salts.add(access.check({"authorization": f"Bearer {keys[0].key}"}).cache_salt)
    assert len(salts) == 2 and "" not in salts


@pytest.mark.parametrize("shares", [False, True])
async def test_what_is_computed_of_a_key_s_prompts_is_there_for_others_if_they_share(
    serve_with: ServeWith, engine: FakeEngine, shares: bool
) -> None:
    keys = (ApiKey("anna", "s-1"), ApiKey("ben", "s-2"))
    async with serve_with(ServerOptions(api_keys=keys, share_prefixes=shares)) as served:
        for key in ("s-1", "s-2", "s-1"):
            async with httpx.AsyncClient(base_url=served.url, headers={"authorization": f"Bearer {key}"}) as client:
                assert (await client.post("/v1/responses", json={"input": "hi"})).status_code == 200
    first, second, third = (call.cache_salt for call in engine.calls)
    assert first == third
    assert (first == second) is shares
