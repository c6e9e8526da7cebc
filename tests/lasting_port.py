"""A port that one server after another can have, with nobody else on it in between."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from pathlib import Path

_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")  # of these the system gives whoever asks for any
_LOWEST, _ENOUGH = 10_000, 1000


def lasting_port() -> int:
    """Return a free port that the system gives nobody who does not name it, where there are such."""
    first_given = int(_GIVEN.read_text().split()[0])
    while True:
        port = _LOWEST + secrets.randbelow(max(first_given - _LOWEST, _ENOUGH))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
