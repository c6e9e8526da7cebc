"""Commands that end with all that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

GRACE_S = 10.0  # for removing temporary files


def run_group(command: Sequence[str], timeout_s: float | None = None) -> int:
    """Run a command in a session of its own, with this process's output; returns its exit status.

    If this raises, or is interrupted, the command and the processes that it started have ended.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait(timeout_s)
        except BaseException:
            _end(process)
            raise


def end_with_signals() -> None:
    """Have SIGTERM and SIGHUP end this process as Ctrl-C does: blocks are left, and commands that run end."""

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt all of a session, and kill what remains of it."""
    try:
        _signal(process, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    finally:
        _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, number)
