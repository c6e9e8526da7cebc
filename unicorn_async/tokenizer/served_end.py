"""A process that serves one end of a socket, and ends when nobody is at the other one."""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection


@contextmanager
def ending_with(connection: Connection) -> Iterator[None]:
    """Have the kernel end this process, whatever it is at, when the other end is closed; nothing may come from there.

    Raises:
        EOFError: it was closed before.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # which ends a process
    descriptor = connection.fileno()
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    if connection.poll():
        raise EOFError("the other end was closed")
    try:
        yield
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
