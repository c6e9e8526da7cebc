"""What all scripts here have: numbers, files and commands on their command lines, and an end in one line."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from unicorn_async.errors import ConfigError, RequestError, UnicornError

if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = 130
PLACE = "{file}"


def whole(text: str) -> int:
    """Parse a whole number, 0 or more; for positive ones there is `count` of unicorn_async.cli.options."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, got {text!r}")
    return int(text)


def amount(text: str) -> float:
    """Parse a finite number, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number, 0 or more, got {text!r}")
    return value


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    value = amount(text)
    if not value:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value


def head_shape(text: str) -> tuple[int, int, int]:
    """Parse query heads, heads of keys and values, and the size of a head, as in 32:8:128."""
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"expected query heads:kv heads:size of a head, as in 32:8:128, got {text!r}")
    num_heads, num_kv_heads, head_dim = map(int, parts)
    if num_heads % num_kv_heads:
        raise argparse.ArgumentTypeError(f"{text}: expected a multiple of {num_kv_heads} query heads, got {num_heads}")
    return num_heads, num_kv_heads, head_dim


def matrix_shape(text: str) -> tuple[int, int]:
    """Parse rows x columns, as in 4096x14336."""
    rows, _, columns = text.partition("x")
    if not all(part.isascii() and part.isdigit() and int(part) for part in (rows, columns)):
        raise argparse.ArgumentTypeError(f"expected rows x columns, such as 4096x14336, got {text!r}")
    return int(rows), int(columns)


def out_file(text: str) -> Path:
    """Parse the name of a file that is written at the end of what may take an hour; it is not touched yet."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: is a directory")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: can't be written")
    return path


@dataclass(frozen=True, slots=True)
class LlamaCommand:
    """A command of llama.cpp's, with {file} for the file's name; llama_load_time.cpp is one that prints its times."""

    words: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> LlamaCommand:
        """Parse a command as a shell splits it; the type of an argument."""
        try:
            words = shlex.split(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(f"{text!r}: {exc}") from None
        if not any(PLACE in word for word in words[1:]):
            raise argparse.ArgumentTypeError(f"expected a command with {PLACE} for the model's file, got {text!r}")
        if shutil.which(words[0]) is None:
            raise argparse.ArgumentTypeError(f"{words[0]}: no such command")
        return cls(tuple(words))

    def run(self, file: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run it on a file."""
        command = [word.replace(PLACE, str(file)) for word in self.words]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)

    def __str__(self) -> str:
        """Return it as a shell would take it."""
        return shlex.join(self.words)


def run_script(main: Callable[[], None]) -> None:
    """Run a script; what its options ask for in vain ends it with status 2, all other errors of an engine with 1.

    Ctrl-C ends it with 130, as a shell says it; SIGTERM and SIGHUP let it remove what it made, too.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        main()
    except UnicornError as exc:
        print(f"{Path(sys.argv[0]).name}: {' '.join(str(exc).split())}", file=sys.stderr)
        sys.exit(2 if isinstance(exc, ConfigError | RequestError) else 1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def run_part(parser: argparse.ArgumentParser) -> None:
    """Parse the command line of a script of several parts, and run the part that is asked for.

    A part's own parser has its default `run`, which is called with the options and that parser.
    """
    options = parser.parse_args()
    options.run(options, options.parser)


def add_part(
    parts: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace, argparse.ArgumentParser], None],
    text: str,
) -> argparse.ArgumentParser:
    """Add a part to a script; returns its parser."""
    parser = parts.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run, parser=parser)
    return parser


def _leave(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)
