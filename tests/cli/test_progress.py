from __future__ import annotations

import io
from dataclasses import replace

from unicorn_async.cli.amounts import duration, rate, size
from unicorn_async.cli.progress import ProgressLine, download_text, load_text
from unicorn_async.engine.types import LoadProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_load_under_way_shows_bytes_speed_layers_and_the_time_left() -> None:
    text = load_text(LoadProgress(4_000_000_000, 1_000_000_000, 62, 15, 2.0, False))
    assert "25%" in text
    assert "1.0 GB of 4.0 GB" in text
    assert "500 MB/s" in text
    assert "15 of 62 layers active" in text
    assert "6.00 s left" in text
    assert "cache" not in text
    text = load_text(LoadProgress(4_000_000_000, 1_000_000_000, 62, 15, 2.0, False, from_cache=True))
    assert text.endswith("from the cache")
    coming = LoadProgress(
        4_000_000_000,
        1_000_000_000,
        62,
        15,
        2.0,
        False,
        bytes_to_download=4_100_000_000,
        bytes_downloaded=1_200_000_000,
    )
    assert load_text(coming).endswith("6.00 s left, 1.2 GB of 4.1 GB downloaded")


def test_a_download_that_a_load_waits_for_has_a_bar() -> None:
    early = LoadProgress(0, 0, 0, 0, 1.0, False)
    assert download_text(early) == "asking   the hub"
    come = replace(early, bytes_to_download=4_000_000_000, bytes_downloaded=1_000_000_000)
    assert download_text(come) == "bringing [######------------------]  25% 1.0 GB of 4.0 GB downloaded"


def test_a_terminal_has_one_line_rewritten_and_none_left_at_the_end() -> None:
    terminal = Terminal()
    with ProgressLine(terminal) as line:
        line.update("first")
        line.note("to stay")
    assert terminal.getvalue().endswith("to stay\n")
    assert "\x1b[K" in terminal.getvalue()


def test_a_log_gets_no_control_characters_and_no_flood() -> None:
    log = io.StringIO()
    with ProgressLine(log) as line:
        for number in range(1000):
            line.update(f"step {number}")
        line.note("done")
    assert log.getvalue() == "done\n"


def test_amounts_are_short() -> None:
    assert [size(n) for n in (0, 999, 1000, 13_650_432, 999_960_000, 54e9)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "13.7 MB",
        "1.0 GB",
        "54.0 GB",
    ]
    assert rate(1.5e9) == "1.5 GB/s"
    assert rate(None) == "– B/s"
    assert [duration(s) for s in (0.426, 42.4, 185.0)] == ["0.43 s", "42 s", "3 min 5 s"]
