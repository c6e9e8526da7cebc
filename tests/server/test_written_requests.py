"""Requests as they are written: in two ways to read, oddly, in many parts, and as they should be."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import TYPE_CHECKING

import h11
import httpx
import pytest

from tests.server.raw_connection import UPGRADE, post, raw
from unicorn_async.server.http_protocol import HttpProtocol
from unicorn_async.server.strict_http import MAX_TURN_EVENTS, StrictConnection

if TYPE_CHECKING:
    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET /health HTTP/1.1\nhost: x\r\n\r\n",
        b"GET /health HTTP/1.1\nhost: x\n\n",
        b"GET /health HTTP/1.1\r\nhost: x\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\na: b\r\n\tc\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        b"POST /v1/responses HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer a\r\nAuthorization: Bearer a\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\na: b\rc: d\r\n\r\n",
        b"\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
async def test_what_may_be_read_in_two_ways_is_refused(served: Served, request_text: bytes) -> None:
    async with raw(served) as (reader, writer):
        for part in (request_text[:20], request_text[20:]):
            writer.write(part)
            await writer.drain()
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert answer.count(b"HTTP/1.1") == 1


HEAD = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (HEAD + b"content-length: +5\r\n\r\nhello", 400),
        (HEAD + b"content-length: 99999999999999999999\r\n\r\n", 413),
        (HEAD + b"expect: 100-continue\r\ncontent-length: 99999999\r\n\r\n", 413),
        (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n", 400),
        (HEAD + CHUNKED + b"1\r\n{\r\n-1\r\n", 400),
        (HEAD + b"a: b\0\r\n\r\n", 400),
        (HEAD + b"a:\r\n" * 128 + b"\r\n", 431),
        (HEAD + b"a: %s\r\n\r\n" % (b"x" * (32 << 10)), 431),
        (b"GET http://y/ready HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\nhost: x\r\n\r\n", 400),
        (b"GET http://x/ready HTTP/1.1\r\nhost: x\r\n\r\n", 200),
        (b"GET HTTP://X?a=b HTTP/1.1\r\nhost: x\r\n\r\n", 200),
    ],
    ids=[
        *("sign", "length", "expect", "coding", "chunk", "zero", "headers", "head", "host"),
        *("authority", "asterisk", "version", "absolute", "no-path"),
    ],
)
async def test_an_odd_request_has_its_answer_and_one_line_of_the_log(
    served: Served, caplog: pytest.LogCaptureFixture, request_text: bytes, status: int
) -> None:
    async with raw(served) as (reader, writer), asyncio.timeout(120):
        writer.write(request_text)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        length = re.search(rb"content-length: (\d+)", head.lower())
        assert length is not None
        body = await reader.readexactly(int(length[1]))
        if status != 200:
            assert json.loads(body)["error"]["message"]
        port = writer.get_extra_info("sockname")[1]
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [str(port) in record.getMessage() for record in records] == [True] * (status in (400, 431))


async def test_a_body_that_breaks_behind_its_answer_ends_the_connection_alone(
    served: Served, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.hold[1] = asyncio.Event()
    async with httpx.AsyncClient(base_url=served.url) as client:
        name = (await client.post("/v1/responses", json={"input": "Hi", "background": True})).json()["id"]
        path = b"/v1/responses/%s?stream=true" % name.encode()
        async with raw(served) as (reader, writer), asyncio.timeout(120):
            writer.write(b"GET %s HTTP/1.1\r\nhost: x\r\n" % path + CHUNKED)
            await reader.readuntil(b"response.created")
            writer.write(b"no chunk\r\n")
            await reader.read()
        engine.hold[1].set()
        assert (await client.get("/ready")).status_code == 200
    assert [record.exc_info for record in caplog.records if record.levelno >= logging.WARNING] == [None]


async def test_a_body_in_many_parts_gets_a_bounded_part_of_each_turn_of_the_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    next_event, handle = StrictConnection.next_event, HttpProtocol.handle_events

    def counted(of: StrictConnection) -> object:
        event = next_event(of)
        turns[-1] += isinstance(event, h11.Event)
        return event

    def handled(of: HttpProtocol) -> None:
        turns.append(0)
        handle(of)
        assert turns[-1] <= MAX_TURN_EVENTS

    monkeypatch.setattr(StrictConnection, "next_event", counted)
    monkeypatch.setattr(HttpProtocol, "handle_events", handled)
    text = json.dumps({"input": "Hi" * 1000}).encode()
    parts = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
    async with raw(served) as (reader, writer), asyncio.timeout(120):
        for _ in range(3):
            writer.write(HEAD + CHUNKED + parts + b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")
        for _ in range(6):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            length = re.search(rb"content-length: (\d+)", head.lower())
            assert length is not None
            await reader.readexactly(int(length[1]))
    assert sum(turns) == 3 * (len(text) + 2 + 2)


@pytest.mark.parametrize(
    "request_text",
    [
        UPGRADE.replace(b"host: x", b"host: x\r\ncontent-length: 0") % b"/v1/responses",
        UPGRADE.replace(b"host: x", b"host: x\r\ncontent-length: 33") % b"/v1/responses",
        UPGRADE.replace(b"host: x", b"host: x\r\ntransfer-encoding: chunked") % b"/v1/responses",
        UPGRADE.replace(b"GET", b"POST") % b"/v1/responses",
        UPGRADE.replace(b"GET", b"HEAD") % b"/v1/responses",
        UPGRADE.replace(b"host: x", b"host: x\r\ncookie: " + b"x" * 9000) % b"/v1/responses",
        UPGRADE % (b"/v1/responses?" + b"x" * 9000),
    ],
    ids=["no-body", "body", "chunks", "post", "head", "long-header", "long-line"],
)
async def test_a_handshake_that_is_none_is_refused(served: Served, request_text: bytes) -> None:
    async with raw(served) as (reader, writer), asyncio.timeout(120):
        writer.write(request_text)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_handshake"


async def test_requests_that_are_written_as_they_should_be_are_answered(served: Served) -> None:
    async with raw(served) as (reader, writer):
        pipelined = b"GET /ready HTTP/1.1\r\nhost: x\r\na:\tb c\r\n\r\n"
        writer.write(post("/v1/responses", {"input": "a\nb"}, chunks=True) + pipelined + pipelined)
        for status in (b"200", b"200", b"200"):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 " + status)
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
