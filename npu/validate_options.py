"""The options of `unicorn npu validate`; what has no sense is refused before anything is measured."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.npu.geometry import CHIPS, HEAD_DIMS
from unicorn_async.npu.manifest import build_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTEXTS = (1, 63, 64, 65, 1024, 1025, 4096)
MAX_CONTEXT = 1 << 16  # its float64 reference has to fit into the host's memory
MAX_REPEATS = 1_000_000


def parse_options(arguments: Sequence[str] | None, description: str) -> argparse.Namespace:
    """Return the options; ends the process where they can't be."""
    parser = argparse.ArgumentParser(prog="unicorn npu validate", description=description)
    parser.add_argument("--head-dim", type=int, choices=HEAD_DIMS, action="append", help="default: all that are built")
    parser.add_argument("--builds", type=Path, default=build_dir(), metavar="FOLDER", help="default: %(default)s")
    parser.add_argument(
        "--out", type=Path, default=Path("npu-report.json"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--soak-seconds", type=_seconds, default=60.0, metavar="S")
    parser.add_argument("--repeats", type=_repeats, default=200, metavar="N", help="of each measurement")
    parser.add_argument("--device", metavar="DEVICE", help="the GPU of the soak: index or part of the name")
    parser.add_argument("--no-gpu", action="store_true", help="soak without a busy GPU; the report says so")
    parser.add_argument(
        "--emulated",
        choices=[chip.name for chip in CHIPS],
        metavar="CHIP",
        help="take XRT's first device for an emulator of this chip: nothing of the machine is looked at, and no rates"
        " are kept",
    )
    parser.add_argument("--contexts", type=_context, nargs="+", default=list(CONTEXTS), metavar="TOKENS")
    options = parser.parse_args(arguments)
    if problem := _why_not_written(options.out):
        parser.error(f"--out: {options.out}: {problem}")
    return options


def _why_not_written(path: Path) -> str | None:
    """Return what keeps a report from being written, before anything is measured for it."""
    if path.is_dir():
        return "is a folder"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    return None if os.access(path if path.exists() else path.parent, os.W_OK) else "can't be written"


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds from 0 on, got {text!r}")
    return value


def _repeats(text: str) -> int:
    return _between(text, 1, MAX_REPEATS)


def _context(text: str) -> int:
    return _between(text, 1, MAX_CONTEXT)


def _between(text: str, lowest: int, highest: int) -> int:
    value = int(text)
    if not lowest <= value <= highest:
        raise argparse.ArgumentTypeError(f"expected {lowest} to {highest:,}, got {text!r}")
    return value
