"""The command line: one module a subcommand."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING

from unicorn_async.cli.interpreter import set_up_interpreter
from unicorn_async.cli.interrupt import quiet_end, raise_on_interrupt
from unicorn_async.errors import UnicornError
from unicorn_async.public_text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.instance_start import InstanceStart

_COMMANDS = {
    "demo": "serve the bundled demo model and a chat page",
    "serve": "serve a model: chat page, websocket, OpenAI-compatible HTTP",
    "generate": "complete one prompt on the terminal",
    "bench": "measure prompt processing and decoding",
    "tune": "measure which kernels are fastest for a model on a device, and keep that",
    "devices": "list the Vulkan devices",
    "pull": "bring a model from the Hugging Face hub into its cache on this machine",
    "list": "list the models in the Hugging Face cache",
    "rm": "remove models from the Hugging Face cache",
    "cache": "list, prune and verify the weights that were quantised once and kept",
    "inspect": "show a model's tensors and what goes where",
    "npu": "check, build and validate attention on an AMD NPU",
}
_SERVING = ("demo", "serve")  # take options from the environment and a file, too
_ENDING = frozenset({"-h", "--help", "--print-config"})
_OPENING = ("demo", "serve", "generate")  # begin with an engine


def run(arguments: Sequence[str] | None) -> int:
    """Run one command, that of the process by default; returns the exit status, raises KeyboardInterrupt."""
    parser = argparse.ArgumentParser(prog="unicorn", description="Serves large language models on the GPU you own.")
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the program's version number and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in _COMMANDS.items():
        subparsers.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".", add_help=False)
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen, _ = parser.parse_known_args(given[:1])
    with contextlib.ExitStack() as stack:
        if chosen.command in _SERVING:
            stack.enter_context(quiet_end())
        set_up_interpreter()
        return _run(chosen.command, given[1:], _begin_vulkan(chosen.command, given[1:], stack))


def _begin_vulkan(name: str, given: Sequence[str], stack: contextlib.ExitStack) -> InstanceStart | None:
    """Open Vulkan for a command that is known to need it, beside the imports of everything else that it needs."""
    if name not in _OPENING or not _ENDING.isdisjoint(given):
        return None
    from unicorn_async.gpu.instance_start import InstanceStart

    return stack.enter_context(InstanceStart(validation="--validation" in given))


class _ShowVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version  # whose import no command has to wait for

        print(f"unicorn-async {version('unicorn-async')}")
        parser.exit()


def _run(name: str, given: Sequence[str], vulkan: InstanceStart | None) -> int:
    module = importlib.import_module(f"unicorn_async.cli.{name}")
    command = argparse.ArgumentParser(prog=f"unicorn {name}", description=_COMMANDS[name])
    command.set_defaults(vulkan=vulkan)
    module.add_arguments(command)
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("unicorn: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    try:
        options = _parsed(name, command, given)
        raise_on_interrupt()
        status: int = module.run(options)
        sys.stdout.flush()
    except UnicornError as exc:
        print(_printable_lines(f"unicorn {name}: {exc}"), file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader is gone (`unicorn inspect … | head`); the interpreter would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _parsed(name: str, command: argparse.ArgumentParser, given: Sequence[str]) -> argparse.Namespace:
    if name not in _SERVING:
        return command.parse_args(given)
    from unicorn_async.cli.settings import parse_settings

    options = parse_settings(command, given, os.environ)
    if options.print_config is not None:
        print(options.print_config)
        command.exit()
    return options


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _printable_lines(super().format(record))


def _printable_lines(text: str) -> str:
    """Messages may hold names from files."""
    return "\n".join(map(printable, text.split("\n")))
