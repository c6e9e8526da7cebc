"""What Ctrl-C, and a signal that ends a server, do while a command is imported.

Python raises KeyboardInterrupt wherever the main thread is. Amid an import that may be in a callback that can't raise:
a traceback is printed and the command goes on, or waits forever for the lock of imports that the callback held. So the
process ends on the spot: nothing is there yet that would have to be closed.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


def exit_on_interrupt() -> None:
    """Have Ctrl-C end the process with status 130, silently, unless somebody else handles it, or it is ignored."""
    if _is_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again, from where a command has things to close."""
    if _is_main_thread() and signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def quiet_end() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end a server's process for the block's time as they end one that serves: with status 0.

    Whoever opens what has to be closed handles them; who ignores them, as nohup does, goes on.
    """
    if not _is_main_thread():
        yield
        return
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _exit_quietly)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _exit_quietly(number: int, frame: FrameType | None) -> None:
    os._exit(0)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()  # no other one may set a handler


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
