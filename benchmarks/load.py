#!/usr/bin/env python3
"""The rate of loading a model against a bare parallel read of the same files, and against peers.

    load.py MODEL [--repeat 5] [--minutes M] [--weights SCHEME] [--device NAME] [--threads N] [--only cold]
            [--methods A,B] [--back GB] [--json FILE] [--llama "COMMAND {file}" [--gguf FILE]]

Every measurement is a process of its own (load_methods.py). A round runs every method once, in turn forwards and
backwards; cold rounds drop the files from the page cache before each method, warm rounds read them into it first. Rates
are bytes of the files by seconds of reading and copying; ratios are medians of the rounds' own ratios, with the lowest
and the highest, because the machine's state changes between rounds. Host memory is measured in a run of its own after
the rounds (host_memory.py says what counts).

The bare reads, by as many threads as the engine's load has, 16 MiB each: `bare-memory`, buffered into fresh device
memory (where the CPU sees it, else a staging ring); `bare-buffered` and `bare-direct` (O_DIRECT), into a ring of
ordinary memory. All memory is of the same kind as the engine's, huge pages where the kernel has them, and there before
the clock starts. The engine's clock holds the opening of files and most of its allocation, and ends with the last
active layer. `engine-alone` makes no tokenizer, and has compiled all kernels and allocated more before. Peers copy
every tensor into device memory by the CPU. Libraries that can't be imported are left out, by name. llama.cpp is timed
by what a command prints; llama_load_time.cpp beside this script makes one, and says how it is built.

With a scheme, the files are the model's entry in the weight cache, which is made before the first round.

In a virtual machine, memory that nobody has used for a while is slow when it is touched first, because the host has
taken it back. `--back GB` has a process use so much of it, and end, just before memory for a load is allocated; without
it, on a software device, twice as much as the files have, for page cache and model, and 1 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_device import check_fit
from command_line import LlamaCommand, amount, out_file
from compared_loads import back_memory
from load_methods import FILL, engine_config, files_to_read

from unicorn_async.cli.options import count
from unicorn_async.config import WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.gpu.host_memory import HostMemory
from unicorn_async.loader.read_facts import resident_share

HERE = Path(__file__).parent
COLD = ("bare-direct", "bare-buffered", "bare-memory", "engine", "engine-direct")
WARM = ("bare-buffered", "bare-memory", "engine", "engine-alone")
PEERS = ("safetensors", "runai-streamer", "fastsafetensors")
LLAMA = "llama.cpp"
METHODS = tuple(dict.fromkeys((*COLD, *WARM, *PEERS, LLAMA)))
TIMEOUT_S = 600
OLD_BYTES = 26e9  # what the loader's predecessor took minutes for
LLAMA_SECONDS = re.compile(r"\b(\w+?)(?: time)?\s*=\s*([\d.]+)\s*(ms|s)\b")


@dataclass(slots=True)
class Results:
    """Loads by page cache's state and method, each list in the order of the rounds; None where one failed."""

    loads: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=lambda: {"cold": {}, "warm": {}})
    memory: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def rates(self, state: str, method: str) -> list[float]:
        """Bytes per second, by round."""
        return [load["nbytes"] / load["seconds"] for load in self.loads[state].get(method, [])]

    def ratios(self, state: str, method: str, bare: str) -> list[float]:
        """Return the rounds' ratios, sorted."""
        pairs = zip(self.rates(state, method), self.rates(state, bare), strict=False)
        return sorted(one / other for one, other in pairs)


def drop(files: tuple[Path, ...]) -> None:
    """Drop the files' pages; dirty ones are written first."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def warm(files: tuple[Path, ...]) -> None:
    """Read the files into the page cache, unless they are there."""
    if resident_share(files) == 1.0:
        return
    buffer = bytearray(16 << 20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def measure(method: str, options: argparse.Namespace, results: Results, *flags: str) -> dict[str, Any] | None:
    """Run a method once; None if it can't be run, which is noted."""
    if method == LLAMA:
        try:
            return run_llama(options)
        except MemoryError as exc:
            results.left_out[method] = str(exc)
            return None
    command = [sys.executable, str(HERE / "load_methods.py"), method, str(options.model), *flags]
    command += [f"--device={options.device}"] * bool(options.device) + [f"--weights={options.weights}"]
    command += [f"--threads={options.threads}"] * bool(options.threads) + [f"--back={options.back or 0}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        results.left_out[method] = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return None
    load: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return load


def run_llama(options: argparse.Namespace) -> dict[str, Any]:
    """Time llama.cpp by what it prints itself about its load."""
    resident = resident_share((options.gguf,))
    back_memory(int((options.back or 0) * 1e9))
    done = options.llama.run(options.gguf, TIMEOUT_S)
    found = {
        name: float(value) / (1e3 if unit == "ms" else 1)
        for name, value, unit in LLAMA_SECONDS.findall(done.stdout + done.stderr)
    }
    if "load" not in found:
        raise SystemExit(f"{options.llama}: printed no load time (exit status {done.returncode})")
    nbytes = options.gguf.stat().st_size
    return {"nbytes": nbytes, "seconds": found["load"], "resident_share": resident, "printed": found}


def plan_of(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the methods of a cold and of a warm round."""
    peers = [] if options.weights != WeightScheme.AUTO.value or options.model.is_file() else [*PEERS]
    peers += [LLAMA] * bool(options.llama)
    plan = {"cold": [*COLD, *peers], "warm": [*WARM, *peers]}
    return {
        state: [method for method in methods if options.methods is None or method in options.methods]
        for state, methods in plan.items()
        if not options.only or state == options.only
    }


def method_names(text: str) -> list[str]:
    """Parse methods that are separated by commas."""
    names = text.split(",")
    if unknown := [name for name in names if name not in METHODS]:
        raise argparse.ArgumentTypeError(f"expected some of {','.join(METHODS)}, got {','.join(unknown)!r}")
    return names


def run(options: argparse.Namespace, files: tuple[Path, ...]) -> Results:
    """Run all rounds."""
    results, plan, started = Results(), plan_of(options), time.monotonic()
    measure("engine", options, Results(), "--settle")  # fills the caches of compiled kernels
    for state, methods in plan.items():
        for number in range(options.repeat):
            if number and time.monotonic() - started > 60 * options.minutes:
                results.notes.append(f"{state}: {number} rounds, for want of time")
                break
            for method in [name for name in methods[:: -1 if number % 2 else 1] if name not in results.left_out]:
                touched = (options.gguf,) if method == LLAMA else files
                drop(touched) if state == "cold" else warm(touched)
                if (load := measure(method, options, results)) is not None:
                    results.loads[state].setdefault(method, []).append(load)
                    show(state, method, load)
    for method in dict.fromkeys(method for methods in plan.values() for method in methods):
        if method != LLAMA and method not in results.left_out:
            warm(files)
            if (load := measure(method, options, results, "--memory")) is not None:
                results.memory[method] = load
    return results


def show(state: str, method: str, load: dict[str, Any]) -> None:
    """Say what a load took, while others are to come."""
    rate, resident = load["nbytes"] / load["seconds"] / 1e9, load["resident_share"]
    print(f"{state} {method:16} {load['seconds']:7.2f} s  {rate:6.2f} GB/s  ({resident:.0%} cached)", file=sys.stderr)


def table(results: Results) -> list[str]:
    """Return the report for people."""
    lines = []
    for state, loads in results.loads.items():
        if not loads:
            continue
        lines.append(
            f"{state:16}{'GB/s (lowest to highest)':>28}{'seconds':>9}{'CPU s/GB':>10}{'cached':>8}{'rounds':>8}"
        )
        for method, runs in loads.items():
            rates = [rate / 1e9 for rate in results.rates(state, method)]
            spread = f"{statistics.median(rates):.2f} ({min(rates):.2f} to {max(rates):.2f})"
            seconds = statistics.median(run["seconds"] for run in runs)
            cached = statistics.median(run["resident_share"] for run in runs)
            cpu = [1e9 * run["cpu_s"] / run["nbytes"] for run in runs if "cpu_s" in run]
            used = f"{statistics.median(cpu):.3f}" if cpu else ""
            lines.append(f"{method:16}{spread:>28}{seconds:>9.2f}{used:>10}{cached:>8.0%}{len(runs):>8}")
        lines.append("")
    lines += [
        f"host memory of {method}: at most {load['peak_bytes'] / 1e6:.0f} MB, {load['start_bytes'] / 1e6:.0f} before"
        for method, load in results.memory.items()
    ]
    return lines + ratio_lines(results)


def ratio_lines(results: Results) -> list[str]:
    """Return the ratios that matter, what the old load would take, and what is missing."""
    lines = []
    for state, method, bare in (
        *(("cold", "engine", bare) for bare in ("bare-direct", "bare-buffered", "bare-memory")),
        ("cold", "engine-direct", "bare-direct"),
        ("warm", "engine", "bare-memory"),
        ("warm", "engine-alone", "bare-memory"),
        *((state, "engine", peer) for state in ("cold", "warm") for peer in (*PEERS, LLAMA)),
    ):
        if ratios := results.ratios(state, method, bare):
            spread = f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
            lines.append(f"{state}: {method} is {statistics.median(ratios):.2f} {spread} times {bare}")
    for state in results.loads:
        if rates := results.rates(state, "engine"):
            seconds = OLD_BYTES / statistics.median(rates)
            lines.append(f"{state}: 26 GB would take {seconds:.1f} s at the engine's median rate")
        if makes := [run["tokenizer_s"] for run in results.loads[state].get("engine", []) if run["tokenizer_s"]]:
            lines.append(f"{state}: the tokenizer took {statistics.median(makes):.2f} s, beside the load")
        printed = [run["printed"] for run in results.loads[state].get(LLAMA, [])]
        if printed:
            parts = (f"{name} {statistics.median(run[name] for run in printed):.2f} s" for name in printed[0])
            lines.append(f"{state}: {LLAMA} prints {', '.join(parts)}")
    return lines + results.notes + [f"left out: {method}: {why}" for method, why in results.left_out.items()]


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line; ends the script with a message if there is nothing to do, or no means."""
    options = parser.parse_args()
    options.gguf = options.gguf or options.model
    if options.llama and not options.gguf.is_file():
        parser.error("--llama needs a GGUF file, as MODEL or by --gguf")
    planned = [method for methods in plan_of(options).values() for method in methods]
    if idle := [method for method in options.methods or () if method not in planned]:
        parser.error(f"--methods: {','.join(idle)}: not for this model with these options")
    free = HostMemory().available_bytes()
    if options.back and free is not None and options.back * 1e9 > free:
        parser.error(f"--back: {options.back:g} GB are more than the {free / 1e9:.1f} GB that are free")
    return options


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Loading against a bare read and against peers.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeat", type=count, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument("--minutes", type=amount, default=1e9, metavar="M", help="begin no new round after M minutes")
    parser.add_argument("--weights", choices=[scheme.value for scheme in WeightScheme], default=WeightScheme.AUTO.value)
    parser.add_argument("--device")
    parser.add_argument("--threads", type=count, metavar="N", help="reading threads (default: as the engine chooses)")
    parser.add_argument("--only", choices=["cold", "warm"])
    parser.add_argument("--methods", type=method_names, metavar="A,B", help="only these")
    parser.add_argument("--back", type=amount, metavar="GB", help="memory to use before each measurement")
    parser.add_argument(
        "--llama",
        type=LlamaCommand.parse,
        metavar="COMMAND",
        help="a llama.cpp command that prints its load time, see llama_load_time.cpp; {file}",
    )
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="the same model for llama.cpp (default: MODEL)")
    parser.add_argument("--json", type=out_file, metavar="FILE")
    options = parsed(parser)
    device, results = check_fit(parser, options.model, engine_config(options)), Results()
    if options.weights != WeightScheme.AUTO.value:
        filled = measure(FILL, options, results)
        if filled is None:
            raise SystemExit(f"the weight cache: {results.left_out[FILL]}")
        print(f"weight cache: {filled}")
    files = files_to_read(ModelFiles.read(options.model, WeightScheme(options.weights)))
    if options.back is None:
        options.back = 2 * sum(path.stat().st_size for path in files) / 1e9 + 1 if device.software else 0.0
    results = run(options, files)
    if not any(results.loads.values()):
        failures = "; ".join(f"{method}: {why}" for method, why in results.left_out.items())
        raise SystemExit(f"nothing was measured: {failures}")
    kind = "SOFTWARE device" if device.software else "GPU"
    print(f"{options.model.name}: {device.name}, {device.driver}, {kind}, {os.cpu_count()} cores\n")
    print("\n".join(table(results)))
    if options.json:
        options.json.write_text(
            json.dumps({"loads": results.loads, "memory": results.memory, "left_out": results.left_out}, indent=1)
        )


if __name__ == "__main__":
    main()
