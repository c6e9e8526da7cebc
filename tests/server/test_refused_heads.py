"""What is no HTTP is told as text, not as an object of Python's."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import h11
import pytest

from tests.server.raw_connection import raw
from unicorn_async.server import observer
from unicorn_async.server.strict_http import StrictConnection

if TYPE_CHECKING:
    from tests.server.conftest import Served

BEGUN = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def taken(parts: list[bytes]) -> tuple[int, bool]:
    """How many requests are taken of what comes, and whether the rest is refused."""
    refused, requests = list[Exception](), 0
    connection = StrictConnection(refused.append)
    for part in parts:
        connection.receive_data(part)
        while (event := connection.next_event()) is not h11.NEED_DATA:
            requests += isinstance(event, h11.Request)
            if isinstance(event, h11.EndOfMessage):
                connection.send(h11.Response(status_code=204, headers=[]))
                connection.send(h11.EndOfMessage())
                connection.start_next_cycle()
    return requests, bool(refused)


@pytest.mark.parametrize(
    ("parts", "number", "is_refused"),
    [
        ([b"\r\n" + HEAD], 1, False),
        ([b"\r", b"\n" + HEAD], 1, False),
        ([HEAD + b"\r\n"], 1, False),
        ([HEAD + b"\r\n" + HEAD], 2, False),
        ([b"\r\n\r\n" + HEAD], 0, True),
        ([b"\r\n", b"\r\n"], 0, True),
        ([b"\n" + HEAD], 0, True),
        ([b"\r", b"x" + HEAD], 0, True),
    ],
)
def test_one_empty_line_before_a_request_is_skipped(parts: list[bytes], number: int, is_refused: bool) -> None:
    assert taken(parts) == (number, is_refused)


@pytest.mark.parametrize(
    ("parts", "number", "is_refused"),
    [
        ([b"\r\n" + HEAD], 2, False),
        ([b"\r", b"\n" + HEAD], 2, False),
        ([b"\n" + HEAD], 1, True),
        ([b"\r", b"x"], 1, True),
        ([b"X: y\r\nContent-Length: 3\r\n\r\n" + HEAD], 1, True),
        ([b"X: y\n\n" + HEAD], 1, True),
    ],
)
def test_a_chunked_body_ends_in_an_empty_line_alone(parts: list[bytes], number: int, is_refused: bool) -> None:
    assert taken([BEGUN + b"1\r\n{\r\n0\r\n", *parts]) == (number, is_refused)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\nX-A : b\r\n\r\n", "illegal header line: 'X-A : b'"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: a\0\r\n\r\n", "illegal header line: 'x: a\\x00'"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", "illegal request line: 'GET /\\xff HTTP/1.1'"),
        (b"GET /: bytearray(b'') HTTP/1.1\r\n\r\n", "illegal request line: \"GET /: bytearray(b\\'\\') HTTP/1.1\""),
        (BEGUN + b"zz\r\n\r\n", "illegal chunk header: 'zz\\r\\n'"),
        (BEGUN + b"1\r\n{xx", "malformed chunk footer: 'xx'"),
    ],
)
async def test_what_is_no_http_is_shown_as_text(served: Served, data: bytes, reason: str) -> None:
    async with raw(served) as (reader, writer), asyncio.timeout(120):
        writer.write(data)
        head, body = (await reader.read()).split(b"\r\n\r\n")
    assert b" 400 " in head
    assert json.loads(body)["error"]["message"] == reason


async def test_a_server_that_ends_tells_who_has_sent_half_of_a_request(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, observer.__name__)
    async with raw(served) as (reader, writer), asyncio.timeout(120):
        writer.write(BEGUN.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n"))
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")  # so that it is read
        served.task.cancel()
        head, body = (await reader.read()).split(b"\r\n\r\n")
    assert b" 503 " in head and b"retry-after: 1" in head
    assert json.loads(body)["error"]["code"] == "engine_closed"
    await asyncio.wait((served.task,))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    told = [record.getMessage() for record in caplog.records if record.name == observer.__name__]
    assert [": 503 after " in line for line in told] == [True]
