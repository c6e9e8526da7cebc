"""The log of a server, as text and as JSON."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import TYPE_CHECKING

from unicorn_async.cli.log_format import JsonFormatter, TextFormatter, add_log_options, set_up_log

if TYPE_CHECKING:
    import pytest


def record(message: str, *, error: Exception | None = None) -> logging.LogRecord:
    trace = None
    if error is not None:
        try:
            raise error
        except Exception:
            trace = sys.exc_info()
    found = logging.LogRecord("unicorn_async.x", logging.WARNING, __file__, 1, message, None, trace)
    found.created, found.msecs = 1.5, 500.0
    return found


def test_a_line_has_time_level_request_and_client() -> None:
    text = TextFormatter(lambda: ("req_1", "10.0.0.1:5")).format(record("slow\x1b[2J"))
    assert text == "1970-01-01T00:00:01.500Z WARNING [req_1 10.0.0.1:5] slow?[2J"
    lines = TextFormatter(lambda: None).format(record("failed", error=ValueError("no"))).split("\n")
    assert lines[0] == "1970-01-01T00:00:01.500Z WARNING failed"
    assert lines[-1] == "ValueError: no"


def test_an_object_has_them_as_fields() -> None:
    line = JsonFormatter(lambda: ("req_1", "10.0.0.1:5")).format(record("two\nlines", error=ValueError("no")))
    assert "\n" not in line
    fields = json.loads(line)
    assert fields.pop("exception").endswith("ValueError: no")
    assert fields == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "warning",
        "logger": "unicorn_async.x",
        "message": "two\nlines",
        "request_id": "req_1",
        "client": "10.0.0.1:5",
    }
    assert "request_id" not in json.loads(JsonFormatter(lambda: None).format(record("alone")))


def test_options_set_level_and_format(monkeypatch: pytest.MonkeyPatch) -> None:
    root, handler = logging.getLogger(), logging.StreamHandler()
    monkeypatch.setattr(root, "handlers", [handler])
    levels = root.level, logging.getLogger("websockets").level
    parser = argparse.ArgumentParser()
    add_log_options(parser)
    try:
        set_up_log(parser.parse_args(["--log-level", "debug", "--log-format", "json"]), lambda: None)
        assert root.level == logging.DEBUG
        assert isinstance(handler.formatter, JsonFormatter)
        assert not logging.getLogger("websockets.server").isEnabledFor(logging.DEBUG)  # which logs keys
    finally:
        root.setLevel(levels[0])
        logging.getLogger("websockets").setLevel(levels[1])
