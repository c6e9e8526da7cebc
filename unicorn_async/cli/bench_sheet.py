"""A sheet for others: what was measured on which machine, in Markdown, without names of its user or his files."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.cli.amounts import size
from unicorn_async.cli.bench_kernels import kernel_lines
from unicorn_async.cli.devices import format_devices
from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.cli.bench_limits import Limits
    from unicorn_async.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a machine says of itself; a line that it does not have is left out."""

    system: str
    processor: str
    cores: int
    memory: str

    @classmethod
    def read(cls, proc: Path = Path("/proc")) -> HostFacts:
        """Read the kernel's files."""
        cpu, memory = (_text(proc / name) for name in ("cpuinfo", "meminfo"))
        name = re.search(r"^model name\s*: (.+)$", cpu, re.MULTILINE)
        total = re.search(r"^MemTotal:\s*(\d+) kB$", memory, re.MULTILINE)
        return cls(
            system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
            processor=platform.machine() if name is None else name[1].strip(),
            cores=os.cpu_count() or 1,
            memory="" if total is None else size(int(total[1]) << 10),
        )

    def text(self) -> str:
        """Return one line."""
        memory = f", {self.memory} of memory" if self.memory else ""
        return f"{self.processor}, {self.cores} threads{memory}; {self.system}"


def sheet_file(text: str) -> Path:
    """Parse where a sheet is to be written; raises ArgumentTypeError where nothing can be."""
    path = Path(text).expanduser()
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that is there, got {text!r}")
    return path


def sheet_lines(engine: Engine, limits: Limits, host: HostFacts, banner: Sequence[str], results: Sequence[str]) -> str:
    """Return the sheet of a model on a device; the engine, of which kernels were timed, may be closed."""
    info = engine.device
    parts = (
        ("Machine", [host.text(), "", *format_devices([info]).splitlines()]),
        ("Model", banner),
        ("What the device can do", limits.lines()),
        ("Speed", results),
        ("Where the time of a step goes", kernel_lines(engine, limits)),
    )
    head = [
        f"# {engine.model_name} on {info.name}",
        "",
        f"By `unicorn bench --report` of unicorn_async {version('unicorn-async')}, {date.today().isoformat()}.",
    ]
    body = [line for title, lines in parts for line in ("", f"## {title}", "", "```", *lines, "```")]
    return "\n".join([*head, *body, ""])


def write_sheet(path: Path, text: str) -> None:
    """Write a sheet.

    Raises:
        ConfigError: it can't be written; the sheet is printed on stderr, so that what was measured is not lost.
    """
    try:
        path.write_text(text)
    except OSError as exc:
        print(text, file=sys.stderr)
        raise ConfigError(f"--report {path}: {exc.strerror}") from exc


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
