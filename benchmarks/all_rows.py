#!/usr/bin/env python3
"""All measurements of one table, one after the other: makes the models, runs the scripts, draws the plots.

    all_rows.py DIRECTORY [--only decode batched ...] [--device NAME] [--llama DIRECTORY] [--large gemma3-27b]
                [--small qwen3-0.6b] [--gguf llama-8b:Q4_K] [--layers N] [--timeout 600]

| row | script | what |
|---|---|---|
| decode | decode.py | the large model, one stream, int4, int8 and f16, contexts of 256 and 32,768, times of kernels |
| batched | batched.py | the large model in int4, 1, 8, 32 and 64 streams, a context of 256, times of kernels; plots |
| prefill | prefill.py | the large model, f16 and int4, prompts of 512 and 2,048, times of kernels |
| small | decode.py | the small model in int8, one stream |
| gguf | decode.py | the GGUF file in its own blocks, one stream |
| peers | peers.py | the GGUF file beside llama.cpp; only with --llama |
| host | host_time.py | the small model in int8, 1 to 64 streams, and the server |
| smooth | smooth_decode.py | the large model in int4: answers under way while a prompt of 2,048 comes |

What the scripts print is printed, and their JSON files lie in DIRECTORY beside the models, which stay there and are not
made again. A row that fails, or whose model can't be made, does not keep the others from running, nor does one that
takes longer than --timeout seconds: it is ended with all of its processes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from amounts import positive
from made_checkpoint import SHAPES, MadeCheckpoint
from process_group import end_with_signals, run_group
from refusals import run_script

from unicorn_async.cli.options import count
from unicorn_async.errors import ConfigError

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Row:
    """A script with its arguments; `model` is a key of the models."""

    name: str
    script: str
    model: str
    arguments: str

    def command(self, options: argparse.Namespace, model: Path) -> list[str]:
        """Return what to run."""
        command = [sys.executable, str(HERE / self.script), str(model), *self.arguments.split()]
        command += [f"--llama={options.llama}"] if self.name == "peers" else []
        command += [f"--device={options.device}"] if options.device else []
        return [*command, "--json", str(options.directory / f"{self.name}.json")]


ROWS = (
    Row("decode", "decode.py", "large", "--weights int4 int8 f16 --context 256 32768 --kernels"),
    Row("batched", "batched.py", "large", "--weights int4 --streams 1 8 32 64 --context 256 --kernels"),
    Row("prefill", "prefill.py", "large", "--weights f16 int4 --prompt 512 2048 --kernels"),
    Row("small", "decode.py", "small", "--weights int8 --context 8 --tokens 256 --kernels"),
    Row("gguf", "decode.py", "gguf", "--context 8 256 --kernels"),
    Row("peers", "peers.py", "gguf", "--repeat 2"),
    Row("host", "host_time.py", "small", "--weights int8"),
    Row("smooth", "smooth_decode.py", "large", "--weights int4 --rounds 1"),
)


def made_model(options: argparse.Namespace, kind: str) -> Path:
    """Return a model of the directory, made if it is not there.

    Raises:
        subprocess.CalledProcessError: it can't be made.
        ConfigError: what is there is another one.
    """
    if kind == "gguf":
        name = options.gguf + (f":{options.layers}" if options.layers else "")
        file: Path = options.directory / f"{name.replace(':', '-')}.gguf"
        if not file.exists():
            unfinished = file.with_suffix(".unfinished")
            make([sys.executable, str(HERE / "random_gguf.py"), name, str(unfinished)])
            unfinished.replace(file)
        return file
    shape: str = getattr(options, kind)
    checkpoint = MadeCheckpoint(shape, "F16", options.layers)
    folder: Path = options.directory / (f"{shape}-{options.layers}" if options.layers else shape)
    if not (folder / "config.json").exists():
        make(checkpoint.command(folder))
    if difference := checkpoint.difference(folder):
        raise ConfigError(f"{folder} is not {checkpoint.name}: {difference}")
    return folder


def make(command: list[str]) -> None:
    """Run what makes a model."""
    if status := run_group(command):
        raise subprocess.CalledProcessError(status, command)


def run(row: Row, options: argparse.Namespace) -> str:
    """Run a row; return how it went."""
    started = time.perf_counter()
    try:
        command = row.command(options, made_model(options, row.model))
    except (OSError, subprocess.CalledProcessError, ConfigError) as exc:
        return f"no model: {exc}"
    print(f"\n== {row.name}: {' '.join([row.script, *command[3:]])}", flush=True)
    try:
        status = run_group(command, options.timeout)
    except subprocess.TimeoutExpired:
        return f"cut off after {options.timeout:g} s"
    return f"{'done' if status == 0 else f'exit status {status}'}, {time.perf_counter() - started:.0f} s"


def draw(directory: Path) -> None:
    """Draw what batched.py measured."""
    for plot in ("throughput", "kernels"):
        command = [sys.executable, str(HERE / "plot.py"), plot, str(directory / f"{plot}.svg")]
        subprocess.run([*command, str(directory / "batched.json")], check=False)


def main() -> None:
    """Run the rows, and say how each of them went."""
    parser = argparse.ArgumentParser(description="All measurements of one table, one after the other.")
    parser.add_argument("directory", type=Path, help="for models and results")
    parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], help="rows (default: all)")
    parser.add_argument("--device", help="index or part of the name")
    parser.add_argument("--llama", type=Path, metavar="DIRECTORY", help="where llama-bench is")
    parser.add_argument("--large", choices=SHAPES, default="gemma3-27b", metavar="SHAPE")
    parser.add_argument("--small", choices=SHAPES, default="qwen3-0.6b", metavar="SHAPE")
    parser.add_argument("--gguf", default="llama-8b:Q4_K", metavar="SHAPE:TYPE")
    parser.add_argument("--layers", type=count, help="of all models, to try the scripts")
    parser.add_argument("--timeout", type=positive, default=600.0, metavar="SECONDS", help="of a row (default 600)")
    options = parser.parse_args()
    end_with_signals()
    options.directory.mkdir(parents=True, exist_ok=True)
    wanted = options.only or [row.name for row in ROWS if row.name != "peers" or options.llama]
    if "peers" in wanted and options.llama is None:
        parser.error("peers: --llama is needed")
    went = {row.name: run(row, options) for row in ROWS if row.name in wanted}
    if "batched" in went:
        draw(options.directory)
    print()
    for name, how in went.items():
        print(f"{name:8} {how}")


if __name__ == "__main__":
    run_script(main)
