"""The signals that a server obeys: what ends it, and what has it read its keys again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    import uvicorn

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def obey_signals(
    server: uvicorn.Server,
    drain: Callable[[], Awaitable[None]] | None,
    drain_s: float,
    *,
    renew: Callable[[], None] | None,
) -> Generator[None, None, None]:
    """End the server in order at the first signal, at once at the second. Only the main thread gets signals.

    At SIGTERM `drain` comes first, if there is one, for so long at most. SIGHUP, which a terminal sends when it is
    closed, ends the server too; where that can't be meant, since there is no terminal or it is to be outlived
    (`nohup`), `renew` is called.
    """
    loop = asyncio.get_running_loop()
    draining: list[asyncio.Task[None]] = []

    async def end(drain: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await drain()
        server.should_exit = True

    def stop(number: int) -> None:
        if number == signal.SIGTERM and drain is not None and not draining and not server.should_exit:
            logger.info("answers under way have %g s to end", drain_s)
            draining.append(loop.create_task(end(drain)))
            return
        server.force_exit = server.should_exit
        server.should_exit = True

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: signal.getsignal(number) for number in SIGNALS}
    is_outlived = earlier[signal.SIGHUP] is signal.SIG_IGN
    renews = renew is not None and (is_outlived or not has_terminal())
    if is_outlived and not renews:
        del earlier[signal.SIGHUP]
    for number in earlier:
        loop.add_signal_handler(number, stop, number)
    if renew is not None and renews:
        loop.add_signal_handler(signal.SIGHUP, renew)
    try:
        yield
    finally:
        for task in draining:
            task.cancel()
        for number, handler in earlier.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def has_terminal() -> bool:
    """Whether the process belongs to a terminal, which may be closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
