"""Rows of a table, one after the other: none of them keeps another from running, or runs on beside it."""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import all_rows
from process_group import end_with_signals, run_group

from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

WAITS = "exec 3>{fifo}; (trap '' INT TERM; exec sleep 60) & wait"  # a grandchild that holds the pipe


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[list[str], int]]:
    """A command whose grandchild holds a pipe as long as it lives, and the other end of the pipe."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    yield ["sh", "-c", WAITS.format(fifo=fifo)], end
    os.close(end)


def is_held(end: int) -> bool:
    """Whether somebody still has the pipe, after some time for a killed one to be gone."""
    poll = select.poll()
    poll.register(end, select.POLLHUP)
    poll.poll(5_000)
    try:
        return os.read(end, 1) != b""
    except BlockingIOError:
        return True


def test_what_a_row_started_ends_with_it_when_its_time_is_over(held: tuple[list[str], int]) -> None:
    command, end = held
    with pytest.raises(subprocess.TimeoutExpired):
        run_group(command, 1.0)
    assert not is_held(end)


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
)
def test_what_a_row_started_ends_when_this_process_is_told_to_end(
    number: signal.Signals, raised: type[BaseException], held: tuple[list[str], int]
) -> None:
    command, end = held
    kept = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    end_with_signals()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), number))
    timer.start()
    try:
        with pytest.raises(raised):
            run_group(command, 60.0)
    finally:
        timer.cancel()
        for one, handler in kept.items():
            signal.signal(one, handler)
    assert not is_held(end)


def test_a_status_is_handed_on() -> None:
    assert run_group(["sh", "-c", "exit 3"]) == 3


def test_rows_follow_a_row_whose_model_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (
        all_rows.Row("decode", "decode.py", "large", "--help"),
        all_rows.Row("host", "host_time.py", "small", "--help"),
    )

    def made_model(_: argparse.Namespace, kind: str) -> Path:
        if kind == "large":
            raise subprocess.CalledProcessError(2, ["make_checkpoint.py", "nonsense"])
        return tmp_path

    monkeypatch.setattr(all_rows, "ROWS", rows)
    monkeypatch.setattr(all_rows, "made_model", made_model)
    monkeypatch.setattr(all_rows, "end_with_signals", lambda: None)
    monkeypatch.setattr(sys, "argv", ["all_rows.py", str(tmp_path), "--only", "decode", "host"])
    all_rows.main()
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("decode   no model: ") and "nonsense" in first
    assert second.startswith("host     done, ")


def test_a_model_of_other_layers_in_the_directory_is_not_taken_for_the_one_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(all_rows, "make", lambda command: made.append(command[3]) or Path(command[3]).touch())
    monkeypatch.setattr(all_rows.MadeCheckpoint, "difference", lambda *_: "something")
    options = argparse.Namespace(directory=tmp_path, large="llama-8b", gguf="llama-8b:Q4_K", layers=2)
    assert all_rows.made_model(options, "gguf").name == "llama-8b-Q4_K-2.gguf"
    with pytest.raises(ConfigError, match="llama-8b-2 is not llama-8b in F16, 2 layers of 32: something"):
        all_rows.made_model(options, "large")
    options.layers = None
    assert all_rows.made_model(options, "gguf").name == "llama-8b-Q4_K.gguf"
    assert [Path(name).name for name in made] == [
        "llama-8b-Q4_K-2.unfinished",
        "llama-8b-2",
        "llama-8b-Q4_K.unfinished",
    ]
