"""The body of an HTTP request, bounded in size and time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from unicorn_async.server.connection import LEASES
from unicorn_async.server.generation import ClientGoneError
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import parse_object
from unicorn_async.server.request_context import asking

if TYPE_CHECKING:
    from starlette.requests import Request

    from unicorn_async.server.ledger import Lease, Ledger
    from unicorn_async.server.options import ServerOptions
    from unicorn_async.server.protocol.fields import Fields

MAX_LENGTH_DIGITS = 20


def hold_body(request: Request, ledger: Ledger) -> Lease:
    """Begin to count the bytes of a request's body, until the request has ended or somebody else takes the lease."""
    lease = ledger.claim(asking.get().name, 0)
    leases_of(request).append(lease)
    return lease


def leases_of(request: Request) -> list[Lease]:
    """Return what is given back at a request's end."""
    leases: list[Lease] = request.scope["state"][LEASES]
    return leases


async def read_object(
    request: Request, options: ServerOptions, *, may_be_empty: bool = False, lease: Lease | None = None
) -> Fields:
    """Read a JSON object; no body at all is an empty one where it may be. `lease` counts its bytes.

    Raises:
        ApiError: as `read_body`, and 400 not a JSON object.
        ClientGoneError: the client went before it had sent everything.
    """
    body = await read_body(request, options, lease=lease)
    return parse_object(body if body or not may_be_empty else b"{}")


async def read_body(request: Request, options: ServerOptions, *, lease: Lease | None = None) -> bytes:
    """Read a body. `lease` counts its bytes.

    Raises:
        ApiError: 413 too large, 415 compressed, 408 too slow, 429 too much of the client's.
        ClientGoneError: the client went before it had sent everything.
    """
    encoding = request.headers.get("content-encoding", "identity").strip()
    if encoding.lower() not in ("", "identity"):
        message = f"content-encoding: bodies are taken as they are, got {encoding[:80]!r}"
        raise ApiError(message, status=415, code="unsupported_encoding")
    limit = options.max_message_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > MAX_LENGTH_DIGITS or int(declared) > limit):
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(options.receive_timeout_s):
            async for chunk in request.stream():
                if lease is not None:
                    lease.add(len(chunk))
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError as exc:
        message = f"the body did not come within {options.receive_timeout_s:g} s"
        raise ApiError(message, status=408, code="request_timeout") from exc
    except ClientDisconnect as exc:
        raise ClientGoneError from exc
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    return ApiError(f"the body is larger than the {limit} bytes allowed", status=413, code="message_too_large")
