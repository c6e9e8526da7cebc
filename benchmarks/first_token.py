#!/usr/bin/env python3
"""When the first token of an answer comes by the engine alone: with empty caches of kernels, and behind a load.

What users wait for is measured by first_answer.py; here there is no server, and in most of it no tokenizer.

    first_token.py caches MODEL [--prompt 16] [--later 10] [--repeat 3] [--device NAME] [--json FILE]
    first_token.py load MODEL [--weights SCHEME] [--device NAME] [--repeat 5] [--short 16] [--long N] [--tokens 64]
                   [--one-step] [--only cold] [--llama "COMMAND {file}" [--gguf FILE]] [--json FILE]

caches: MODEL is a directory or a GGUF file, whose files are read once before anything counts. Every start is a process
of its own, with random token ids and without a tokenizer. It asks at once, as soon as the model is loaded, or --later
seconds after that, as a user of a server would. In a round each of these is started with an empty folder for the
caches, the engine's and those of Mesa's and NVIDIA's drivers, and then again with what the first start has left there.

Wait: from the last layer's activation, or from the moment of asking if that is later, to the first token. Second: from
the first token to the second one, which is the first decoding step. Beside both, the same in the same process once
everything has run: what is above it was compiled, recorded or waited for. Medians with the lowest and the highest.

load is described in first_token_load.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import first_token_load
from command_line import add_part, amount, out_file, run_part, run_script

from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig
from unicorn_async.engine.engine import Engine
from unicorn_async.sampling_params import SamplingParams

TIMEOUT_S = 600
ASKED = ("at once", "loaded", "later")
CACHES = ("empty", "full")
TOKENS = 4
CACHE_FOLDERS = ("XDG_CACHE_HOME", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")


@dataclass(frozen=True, slots=True)
class CacheStart:
    """One start; seconds, those of `load_s` from the process's own beginning of the work."""

    asked: str
    load_s: float
    wait_s: float
    second_s: float
    settled_wait_s: float
    settled_second_s: float
    device: str
    driver: str
    software: bool


async def one_start(options: argparse.Namespace) -> CacheStart:
    """Open the model, ask, and note when what happened."""
    rng, began = Random(options.prompt), time.monotonic()
    config = EngineConfig(
        device=options.device,
        allow_software=True,
        skip_tokenizer=True,
        weight_cache=False,
        max_num_seqs=1,
        max_context=options.prompt + TOKENS,
    )
    async with Engine.open(options.model, config=config) as engine:
        active = 0.0

        async def follow() -> None:
            nonlocal active
            async for _ in engine.load_progress():
                pass
            active = time.monotonic()

        async def asked_at() -> tuple[float, float, float]:
            prompt = [rng.randrange(engine.model_spec.vocab_size) for _ in range(options.prompt)]
            params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0.0)
            asked = time.monotonic()
            first, second, *_ = [time.monotonic() async for _ in engine.stream(prompt, params)]
            return asked, first, second

        following = asyncio.create_task(follow())
        if options.start != "at once":
            await following
        if options.start == "later":
            await asyncio.sleep(options.later)
        asked, first, second = await asked_at()
        await following
        for _ in range(3):  # each of the frames records its commands
            settled = await asked_at()
        return CacheStart(
            options.start,
            active - began,
            first - max(asked, active),
            second - first,
            settled[1] - settled[0],
            settled[2] - settled[1],
            engine.device.name,
            f"{engine.device.driver_name} {engine.device.driver_info}",
            engine.device.is_software,
        )


def cache_start(options: argparse.Namespace, asked: str, folder: str) -> CacheStart:
    """Run one start in a process of its own, whose caches are in a folder."""
    command = [sys.executable, __file__, "caches", options.model, f"--start={asked}", f"--prompt={options.prompt}"]
    command += [f"--later={options.later}"] + [f"--device={options.device}"] * bool(options.device)
    environment = {**os.environ, **{name: str(Path(folder) / name.strip("_").lower()) for name in CACHE_FOLDERS}}
    for name in CACHE_FOLDERS:
        Path(environment[name]).mkdir(exist_ok=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment)
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        raise SystemExit(done.returncode)
    return CacheStart(**json.loads(done.stdout))


def cache_starts(options: argparse.Namespace) -> dict[tuple[str, str], list[CacheStart]]:
    """Run all rounds; returns starts by when they asked, and by the cache's state."""
    found: dict[tuple[str, str], list[CacheStart]] = {(asked, cache): [] for asked in ASKED for cache in CACHES}
    with tempfile.TemporaryDirectory() as folder:
        cache_start(options, "loaded", folder)  # reads the files
    for _ in range(options.repeat):
        for asked in ASKED:
            with tempfile.TemporaryDirectory() as folder:
                for cache in CACHES:
                    found[asked, cache].append(cache_start(options, asked, folder))
    return found


def spread(values: list[float]) -> str:
    """Median, lowest and highest, in milliseconds."""
    low, middle, high = (1e3 * value for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:.0f} ms ({low:.0f} to {high:.0f})"


def cache_lines(found: dict[tuple[str, str], list[CacheStart]]) -> list[str]:
    """Return the report."""
    one = found[ASKED[0], CACHES[0]][0]
    report = [f"{one.device}, {one.driver}, {'SOFTWARE device' if one.software else 'GPU'}, {os.cpu_count()} cores"]
    for (asked, cache), starts in found.items():
        report.append(
            f"asked {asked}, cache {cache}: load {spread([s.load_s for s in starts])}, wait"
            f" {spread([s.wait_s for s in starts])}, later {spread([s.settled_wait_s for s in starts])}; second token"
            f" {spread([s.second_s for s in starts])}, later {spread([s.settled_second_s for s in starts])}"
        )
    return report


def run_caches(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measure starts with empty and full caches, and print; or start once."""
    if not Path(options.model).exists():
        parser.error(f"{options.model}: no such folder or file")
    if options.start:
        print(json.dumps(asdict(asyncio.run(one_start(options)))))
        return
    found = cache_starts(options)
    print("\n".join(cache_lines(found)))
    if options.json:
        starts = [asdict(one) | {"cache": cache} for (_, cache), group in found.items() for one in group]
        options.json.write_text(json.dumps({"model": options.model, "starts": starts}, indent=1) + "\n")


def main() -> None:
    """Run the part that is asked for."""
    parser = argparse.ArgumentParser(description="When the first token of an answer comes.")
    parts = parser.add_subparsers(required=True, metavar="caches or load")

    caches = add_part(parts, "caches", run_caches, "What a first token waits for, with empty and full kernel caches.")
    caches.add_argument("model", help="a directory or a GGUF file")
    caches.add_argument("--prompt", type=count, default=16, metavar="N", help="tokens of the prompt (default 16)")
    caches.add_argument("--later", type=amount, default=10.0, metavar="S", help="between load and prompt (default 10)")
    caches.add_argument("--repeat", type=count, default=3, metavar="N", help="rounds (default 3)")
    caches.add_argument("--device", help="index or part of the name; a software device is taken where nothing else is")
    caches.add_argument("--json", type=out_file, metavar="FILE")
    caches.add_argument("--start", choices=ASKED, help=argparse.SUPPRESS)

    first_token_load.add(parts)
    run_part(parser)


if __name__ == "__main__":
    run_script(main)
