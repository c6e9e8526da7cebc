"""How signals end a command."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from unicorn_async.cli.event_loop import run_async

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def default_handling() -> Iterator[None]:
    """Signals' usual handling here, whatever the caller does with them: nohup has hangups ignored."""
    earlier = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in earlier.items():
        signal.signal(number, handler)


@pytest.fixture
def hangups_ignored() -> Iterator[None]:
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, earlier)


@pytest.mark.usefixtures("default_handling")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_in_order_and_is_its_status(number: signal.Signals) -> None:
    ended: list[str] = []

    async def main() -> int:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("in order")
        return 0

    earlier = signal.getsignal(number)
    assert run_async(main()) == 128 + number
    assert ended == ["in order"]
    assert signal.getsignal(number) == earlier


@pytest.mark.usefixtures("default_handling")
def test_a_server_that_is_ended_has_done_what_it_was_asked() -> None:
    async def main() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
        return 1

    assert run_async(main(), ended_status=0) == 0


@pytest.mark.usefixtures("hangups_ignored")
def test_who_ignores_hangups_goes_on() -> None:
    async def main() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        return 7

    assert run_async(main()) == 7
