"""What is logged while something else is on the terminal."""

from __future__ import annotations

import logging
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.cli.test_progress import Terminal
from unicorn_async.cli.generate import print_answer
from unicorn_async.cli.log_lines import log_lines
from unicorn_async.cli.progress import ProgressLine
from unicorn_async.engine.types import FinishReason, Token
from unicorn_async.errors import DeviceLostError
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from unicorn_async.engine.engine import Engine

log = logging.getLogger("unicorn_async.cache.lookup")


@contextmanager
def one_terminal() -> Iterator[Terminal]:
    """What stdout and stderr have in common, with a log as the command line sets it up."""
    shared = Terminal()
    handler = logging.StreamHandler(shared)
    handler.setFormatter(logging.Formatter("unicorn: %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        with redirect_stdout(shared), redirect_stderr(shared):
            yield shared
        assert handler in logging.getLogger().handlers
    finally:
        logging.getLogger().removeHandler(handler)


class Answering:
    """Logs a warning between two tokens; may fail after them."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def stream(self, *_: Any) -> AsyncGenerator[Token, None]:
        yield Token(1, "i")
        log.warning("weight cache: not written")
        yield Token(2, "nteger", finish_reason=None if self._error else FinishReason.LENGTH)
        if self._error is not None:
            raise self._error


async def test_a_warning_during_an_answer_comes_behind_it() -> None:
    with one_terminal() as terminal, ProgressLine() as line, log_lines(line) as logs:
        await print_answer(cast("Engine", Answering()), [1], SamplingParams(), logs, echo=True)
        log.warning("another")
    assert terminal.getvalue() == "integer\nunicorn: weight cache: not written\nunicorn: another\n"


async def test_so_it_does_where_the_answer_fails() -> None:
    engine = cast("Engine", Answering(DeviceLostError("gone")))
    with one_terminal() as terminal, ProgressLine() as line, log_lines(line) as logs, pytest.raises(DeviceLostError):
        await print_answer(engine, [1], SamplingParams(), logs, echo=True)
    assert terminal.getvalue() == "integer\nunicorn: weight cache: not written\n"


def test_a_warning_takes_the_progress_line_away() -> None:
    with one_terminal() as terminal, ProgressLine() as line, log_lines(line):
        line.update("loading")
        log.warning("damaged")
        line.update("not due yet")
    assert terminal.getvalue() == "\r\x1b[Kloading\r\x1b[Kunicorn: damaged\n"


def test_not_more_than_a_hundred_are_held() -> None:
    with one_terminal() as terminal, ProgressLine() as line, log_lines(line) as logs, logs.held():
        for _ in range(101):
            log.warning("again")
        assert terminal.getvalue() == "unicorn: again\n"
    assert terminal.getvalue() == "unicorn: again\n" * 101
