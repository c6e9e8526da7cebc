"""The log of a server: lines of text, or objects of JSON, with time, level, request and client."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from unicorn_async.public_text import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add what is logged, and how."""
    group = parser.add_argument_group("log")
    group.add_argument(
        "--log-level", choices=LEVELS, default="warning", help="info has a line for each request (default warning)"
    )
    group.add_argument("--log-format", choices=FORMATS, default="text", help="of the log on stderr (default text)")


def set_up_log(options: argparse.Namespace, context: Callable[[], tuple[str, str] | None]) -> None:
    """Have the process log as the options say; `context` tells the name and the client of the request under way."""
    root = logging.getLogger()
    root.setLevel(options.log_level.upper())
    logging.getLogger("websockets").setLevel(max(root.level, logging.INFO))  # whose debugging has keys in it
    formatter = JsonFormatter(context) if options.log_format == "json" else TextFormatter(context)
    for handler in root.handlers:
        handler.setFormatter(formatter)


class TextFormatter(logging.Formatter):
    """A line: time, level, request and client if there are any, message; the lines of a traceback follow it."""

    def __init__(self, context: Callable[[], tuple[str, str] | None]) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        found = self._context()
        place = f"[{' '.join(found)}] " if found is not None else ""
        head = f"{_time(record)} {record.levelname} {place}{record.getMessage()}"
        trace = [self.formatException(record.exc_info)] if record.exc_info else []
        return "\n".join(printable(line) for text in (head, *trace) for line in text.split("\n"))


class JsonFormatter(logging.Formatter):
    """An object a line: `time`, `level`, `logger`, `message`, and of a request `request_id` and `client`."""

    def __init__(self, context: Callable[[], tuple[str, str] | None]) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        from unicorn_async.server.protocol.encoding import encode_object

        fields: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        found = self._context()
        if found is not None:
            fields["request_id"], fields["client"] = found
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return encode_object(fields)


def _time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
