#!/usr/bin/env python3
"""The rate of loading a model against a bare parallel read of the same files, and against peers.

    load.py MODEL [--repeat 5] [--device NAME] [--threads N] [--only cold] [--methods A,B] [--json FILE]
            [--llama "COMMAND {file}" --gguf FILE]

Every measurement is a process of its own (load_methods.py). A round runs every method once, in turn forwards and
backwards; cold rounds drop the files from the page cache before each method, warm rounds read them into it first. Rates
are bytes of the files by seconds of reading and copying; ratios are medians of the rounds' own ratios, because the
machine's state changes between rounds. The bare reads: O_DIRECT and buffered into a ring of ordinary memory, and
buffered into fresh device memory (where the CPU sees it, else a staging ring). Peers copy every tensor into device
memory by the CPU. Libraries that can't be imported are left out, by name.
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

from unicorn_async.engine.startup import ModelOnDisk
from unicorn_async.loader.read_facts import resident_share

HERE = Path(__file__).parent
COLD = ("bare-direct", "bare-buffered", "bare-memory", "engine", "engine-direct")
WARM = ("bare-buffered", "bare-memory", "engine")
PEERS = ("safetensors", "runai-streamer", "fastsafetensors")
TIMEOUT_S = 600
OLD_BYTES = 26e9  # what the loader's predecessor took minutes for
LLAMA_SECONDS = re.compile(r"\bload(?: time)?\s*=\s*([\d.]+)\s*(ms|s)\b")


@dataclass(slots=True)
class Results:
    """Loads by page cache's state and method, each list in the order of the rounds; None where one failed."""

    loads: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=lambda: {"cold": {}, "warm": {}})
    left_out: dict[str, str] = field(default_factory=dict)

    def rates(self, state: str, method: str) -> list[float]:
        """Bytes per second, by round."""
        return [load["nbytes"] / load["seconds"] for load in self.loads[state].get(method, [])]

    def ratio(self, state: str, method: str, bare: str) -> float | None:
        """Return the median of the rounds' ratios."""
        pairs = list(zip(self.rates(state, method), self.rates(state, bare), strict=False))
        return statistics.median(one / other for one, other in pairs) if pairs else None


def drop(files: tuple[Path, ...]) -> None:
    """Drop the files' pages; dirty ones are written first."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def warm(files: tuple[Path, ...]) -> None:
    """Read the files into the page cache."""
    buffer = bytearray(16 << 20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def measure(method: str, options: argparse.Namespace, results: Results, state: str) -> None:
    """Run a method once, and note what it took."""
    if method == "llama.cpp":
        load = run_llama(options)
    else:
        command = [sys.executable, str(HERE / "load_methods.py"), method, str(options.model)]
        command += [f"--device={options.device}"] * bool(options.device)
        command += [f"--threads={options.threads}"] * bool(options.threads)
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode:
            results.left_out[method] = (done.stderr.strip().splitlines() or ["no output"])[-1]
            return
        load = json.loads(done.stdout.splitlines()[-1])
    results.loads[state].setdefault(method, []).append(load)
    rate = load["nbytes"] / load["seconds"] / 1e9
    resident = load["resident_share"]
    print(f"{state} {method:16} {load['seconds']:7.2f} s  {rate:6.2f} GB/s  ({resident:.0%} cached)", file=sys.stderr)


def run_llama(options: argparse.Namespace) -> dict[str, Any]:
    """Time llama.cpp by what it prints itself about its load."""
    command = options.llama.format(file=options.gguf).split()
    resident = resident_share((options.gguf,))
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    found = LLAMA_SECONDS.search(done.stdout + done.stderr)
    if not found:
        raise SystemExit(f"{options.llama}: printed no load time (exit status {done.returncode})")
    seconds = float(found[1]) / (1e3 if found[2] == "ms" else 1)
    return {"nbytes": options.gguf.stat().st_size, "seconds": seconds, "resident_share": resident}


def run(options: argparse.Namespace, files: tuple[Path, ...]) -> Results:
    """Run all rounds."""
    results = Results()
    peers = [*PEERS, *(["llama.cpp"] if options.llama else [])]
    plan = {"cold": [*COLD, *peers], "warm": [*WARM, *peers]}
    if options.methods:
        wanted = options.methods.split(",")
        plan = {state: [method for method in methods if method in wanted] for state, methods in plan.items()}
    measure("engine", options, Results(), "warm")  # fills the driver's shader cache
    for state in [name for name in plan if not options.only or name == options.only]:
        for number in range(options.repeat):
            methods = plan[state][:: -1 if number % 2 else 1]
            for method in [name for name in methods if name not in results.left_out]:
                touched = (options.gguf,) if method == "llama.cpp" else files
                drop(touched) if state == "cold" else warm(touched)
                time.sleep(options.pause)
                measure(method, options, results, state)
    return results


def table(results: Results) -> list[str]:
    """Return the report for people."""
    lines = []
    for state, loads in results.loads.items():
        if not loads:
            continue
        lines.append(
            f"{state:16}{'GB/s (lowest to highest)':>28}{'seconds':>9}{'CPU s/GB':>10}{'host MB':>9}{'cached':>8}"
        )
        for method, runs in loads.items():
            rates = [rate / 1e9 for rate in results.rates(state, method)]
            spread = f"{statistics.median(rates):.2f} ({min(rates):.2f} to {max(rates):.2f})"
            seconds = statistics.median(run["seconds"] for run in runs)
            cached = statistics.median(run["resident_share"] for run in runs)
            line = f"{method:16}{spread:>28}{seconds:>9.2f}"
            if "cpu_s" in runs[0]:
                cpu = statistics.median(1e9 * run["cpu_s"] / run["nbytes"] for run in runs)
                peak = max(run["peak_bytes"] for run in runs) / 1e6
                line += f"{cpu:>10.2f}{peak:>9.0f}"
            else:
                line += " " * 19
            lines.append(f"{line}{cached:>8.0%}")
        lines.append("")
    return lines + ratio_lines(results)


def ratio_lines(results: Results) -> list[str]:
    """Return the ratios that matter, and what the old load would take."""
    lines = []
    for state, method, bare in (
        ("cold", "engine", "bare-memory"),
        ("cold", "engine", "bare-buffered"),
        ("cold", "engine", "bare-direct"),
        ("cold", "engine-direct", "bare-direct"),
        ("warm", "engine", "bare-memory"),
        *((state, "engine", peer) for state in ("cold", "warm") for peer in (*PEERS, "llama.cpp")),
    ):
        if (ratio := results.ratio(state, method, bare)) is not None:
            lines.append(f"{state}: {method} is {ratio:.2f} times {bare}")
    lines += [
        f"{state}: 26 GB would take {OLD_BYTES / statistics.median(rates):.0f} s at the engine's median rate"
        for state in results.loads
        if (rates := results.rates(state, "engine"))
    ]
    return lines + [f"left out: {method}: {why}" for method, why in results.left_out.items()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Loading against a bare read and against peers.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument("--device")
    parser.add_argument("--threads", type=int, metavar="N", help="reading threads (default: as the engine chooses)")
    parser.add_argument("--only", choices=["cold", "warm"])
    parser.add_argument("--methods", metavar="A,B", help="only these")
    parser.add_argument("--pause", type=float, default=0.0, metavar="S", help="rest before each measurement")
    parser.add_argument("--llama", metavar="COMMAND", help="a llama.cpp command that prints its load time; {file}")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="the same model for llama.cpp")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if bool(options.llama) != bool(options.gguf):
        parser.error("--llama and --gguf go together")
    files = ModelOnDisk.read(options.model).checkpoint.files
    results = run(options, files)
    first = next((runs[0] for loads in results.loads.values() for runs in loads.values() if "device" in runs[0]), None)
    if first is None:
        raise SystemExit(f"nothing was measured: {results.left_out}")
    kind = "SOFTWARE device" if first["software"] else "GPU"
    print(f"{options.model.name}: {first['device']}, {first['driver']}, {kind}, {os.cpu_count()} cores\n")
    print("\n".join(table(results)))
    if options.json:
        options.json.write_text(json.dumps({"loads": results.loads, "left_out": results.left_out}, indent=1))


if __name__ == "__main__":
    main()
