"""The socket that a server listens on: open before anything else is, so that who connects early waits in its queue."""

from __future__ import annotations

import socket

from unicorn_async.errors import ConfigError

BACKLOG = 512


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: with the address, and what is wrong with it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise ConfigError(f"can't listen on {host} port {port}: {reason}") from exc
    # Connections inherit it. asyncio would set it on sockets that it makes; without it a response of two writes waits
    # for the client's delayed acknowledgement, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(listener: socket.socket, *, encrypted: bool = False) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if encrypted else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def drop_silent(listener: socket.socket, timeout_s: float) -> None:
    """Have connections end whose peer has not acknowledged, or taken, what was sent for so long.

    Linux does that for what lies in its own buffers, where no program sees it.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * timeout_s))
