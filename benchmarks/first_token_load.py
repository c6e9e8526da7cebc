"""When a prompt that was sent at the start of a process gets its first token, beside the end of the load behind it.

MODEL is a directory or a GGUF file. Every start is a process of its own, with the prompt as random token ids and
without a tokenizer, whose own time is measured apart. A round has, cold (the files dropped from the page cache) and
warm: a start that asks at once a short prompt, one that asks at once a long prompt, and one that asks the short prompt
once the model is loaded. The long prompt is as long as its processing alone takes what the load takes, from its own
beginning, as the first starts measured both (--long sets it). It is cut into steps as the default options have it,
unless --one-step.

Late: from the moment at which the last byte was handed to the device, and from that at which the last layer was active,
to the first token. Allowed, from the first of them: one layer and the head, and 50 ms; the layer is the prompt's whole
processing, measured in the loaded model, over the number of layers, with the head's time in it and not added to it.
That is of a prompt that was run before. What the same short prompt takes at its first run, in a loaded model that has
run nothing, is printed beside it: what comes later than that is the overlap's, the rest is any first run's.
Decoding: tokens per second after the fourth one, in starts that asked at once against starts that waited for the load.
A GPU that had nothing to do for seconds, as during a cold load, may decode its next tokens slowly whatever the load
did: how much that is in a loaded model is printed beside it.

With a scheme, the files are the model's entry in the weight cache, which is made first. A llama.cpp command, which must
print `init=1.2s load=3.4s context=0.1s first_decode=0.2s` (llama_load_time.cpp beside this script makes one, and says
how it is built), runs in every round; its sum is compared with the time from the process's start, interpreter and
imports included, to the short prompt's first token; Vulkan is opened beside the imports, as the commands do it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench_device import check_fit
from command_line import LlamaCommand, add_part, out_file
from first_token_start import CONTEXT, REST_S, SETTLED, Start, engine_config
from load import drop, warm
from load_methods import files_to_read

from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.engine import Engine
from unicorn_async.engine.files import ModelFiles

HERE = Path(__file__).parent
TIMEOUT_S = 600
LLAMA_TIMES = re.compile(r"\b(init|load|context|first_decode)=([\d.]+)s")
SPARE_S = 0.05


@dataclass(slots=True)
class Rounds:
    """Starts of one state of the page cache, and llama.cpp's times."""

    short: list[Start] = field(default_factory=list)
    long: list[Start] = field(default_factory=list)
    waited: list[Start] = field(default_factory=list)
    llama: list[dict[str, float]] = field(default_factory=list)


def start(options: argparse.Namespace, prompt: int, *, wait: bool = False) -> Start:
    """Run one start in a process of its own, with compiled modules kept, as those of an installed package are."""
    script = HERE / "first_token_start.py"
    command = [sys.executable, str(script), str(options.model), f"--weights={options.weights}", f"--prompt={prompt}"]
    command += [f"--device={options.device}"] * bool(options.device) + [f"--tokens={options.tokens}"]
    command += ["--wait"] * wait + ["--one-step"] * options.one_step
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [*command, f"--started={time.monotonic()}"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment,
    )
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    return Start(**json.loads(done.stdout))


def run_llama(options: argparse.Namespace) -> dict[str, float]:
    """Run the peer's own measurement of its start."""
    done = options.llama.run(options.gguf, TIMEOUT_S)
    found = {name: float(value) for name, value in LLAMA_TIMES.findall(done.stdout)}
    if len(found) != 4:
        raise SystemExit(f"{options.llama}: printed no times (exit status {done.returncode}): {done.stderr[-500:]}")
    return found


def make_tokenizer(model: ModelFiles) -> float:
    """Return how long the model's tokenizer takes by itself."""
    command = [sys.executable, str(HERE / "first_token.py"), "load", str(model.checkpoint.path), "--tokenizer"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout)


async def tokenizer_time(options: argparse.Namespace) -> float:
    """Open the model with its tokenizer, which is made beside everything else."""
    config = EngineConfig(device=options.device, allow_software=True, max_num_seqs=1, max_context=CONTEXT)
    async with Engine.open(options.model, config=config) as engine:
        return engine.tokenizer_s


def run(options: argparse.Namespace) -> dict[str, Rounds]:
    """Run all rounds."""
    first = start(options, options.short, wait=True)  # makes the weight cache's entry and the driver's shader cache
    if options.weights != WeightScheme.AUTO.value:
        subprocess.run(
            [sys.executable, str(HERE / "load_methods.py"), "fill-cache", str(options.model)]
            + [f"--weights={options.weights}"]
            + [f"--device={options.device}"] * bool(options.device),
            check=True,
            timeout=TIMEOUT_S,
        )
    files = files_to_read(ModelFiles.read(options.model, WeightScheme(options.weights)))
    found: dict[str, Rounds] = {}
    for state in ("cold", "warm"):
        if options.only not in (None, state):
            continue
        rounds, prepare = found.setdefault(state, Rounds()), {"cold": drop, "warm": warm}[state]
        prepare(files)
        first = start(options, options.short, wait=True)
        long = options.long or long_prompt(options, first)
        start(options, long)  # which compiles what such a prompt needs
        for number in range(options.repeat):
            jobs: list[tuple[list[Start], int, bool]] = [
                (rounds.short, options.short, False),
                (rounds.waited, options.short, True),
                (rounds.long, long, False),
            ]
            for into, prompt, wait in jobs[:: -1 if number % 2 else 1]:
                prepare(files)
                into.append(start(options, prompt, wait=wait))
            if options.llama:
                prepare((options.gguf,))
                rounds.llama.append(run_llama(options))
    return found


def long_prompt(options: argparse.Namespace, first: Start) -> int:
    """Return how many tokens take as long as the load did, by the rate of about so many tokens."""
    num_tokens = 16 if first.software else 512
    for _ in range(2):  # the second time at a length that the first rate led to: a short prompt's rate is lower
        probe = start(options, num_tokens, wait=True)
        num_tokens = max(options.short, round(first.load_s * probe.prompt / probe.alone_s))
    return num_tokens


def spread(values: list[float], unit: str = "s") -> str:
    """Median, lowest and highest."""
    scale = 1e3 if unit == "ms" else 1.0
    low, middle, high = (scale * value for value in (min(values), statistics.median(values), max(values)))
    digits = 0 if unit == "ms" else 2
    return f"{middle:.{digits}f} {unit} ({low:.{digits}f} to {high:.{digits}f})"


def lines(state: str, rounds: Rounds) -> list[str]:
    """Return the report of one state."""
    found = []
    for name, starts in (("short", rounds.short), ("long", rounds.long)):
        one = starts[0]
        found.append(
            f"{state}, {name} prompt of {one.prompt}, alone {spread([s.alone_s for s in starts])}, beside a load of"
            f" {spread([s.load_s for s in starts])}: last layer active at {spread([s.active_s for s in starts])},"
            f" first token at {spread([s.first_token_s for s in starts])}"
        )
        found.append(
            f"  late by {spread([s.late_s for s in starts], 'ms')} after the last byte,"
            f" {spread([s.after_active_s for s in starts], 'ms')} after the last layer; a layer"
            f" {spread([s.layer_s for s in starts], 'ms')}, allowed {1e3 * SPARE_S:.0f} ms more;"
            f" over it in {sum(s.late_s > s.layer_s + SPARE_S for s in starts)} of {len(starts)}"
        )
    ratios = [
        one.decode_tokens_per_s / other.decode_tokens_per_s
        for one, other in zip(rounds.short, rounds.waited, strict=True)
    ]
    found.append(
        f"  decoding after asking at once: {statistics.median(ratios):.4f} of after waiting"
        f" ({min(ratios):.4f} to {max(ratios):.4f}), {spread([s.decode_tokens_per_s for s in rounds.waited], 'tok/s')}"
    )
    rested = [s.rested_share for s in rounds.waited if s.rested_share is not None]
    found.append(
        f"  decoding in the loaded model after {REST_S:.0f} s without work: {statistics.median(rested):.4f} of behind"
        f" other work ({min(rested):.4f} to {max(rested):.4f})"
    )
    found.append(
        f"  asked once loaded: first token at {spread([s.first_token_s for s in rounds.waited])},"
        f" {spread([s.after_active_s for s in rounds.waited], 'ms')} after the last layer, the short prompt's first run"
        f" in a loaded model; opened at {spread([s.opened_s for s in rounds.waited])}, a load of"
        f" {spread([s.load_s for s in rounds.waited])}"
    )
    if rounds.llama:
        sums = [sum(times.values()) for times in rounds.llama]
        ratios = [one.first_token_s / other for one, other in zip(rounds.short, sums, strict=True)]
        parts = ", ".join(f"{name} {statistics.median(r[name] for r in rounds.llama):.2f}" for name in rounds.llama[0])
        found.append(f"  llama.cpp's first token at {spread(sums)} ({parts}); ours takes {spread(ratios, 'of it')}")
    return found


def run_part(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Measure, print, write; ends the script with a message if the starts could not be measured."""
    options.gguf = options.gguf or options.model
    if options.tokenizer:
        print(asyncio.run(tokenizer_time(options)))
        return
    if options.llama and not options.gguf.is_file():
        parser.error("--llama needs a GGUF file, as MODEL or by --gguf")
    if options.tokens <= SETTLED:
        parser.error(f"--tokens: expected more than {SETTLED}, after which there is a rate, got {options.tokens}")
    prompts = (options.short, options.long or options.short)
    check_fit(parser, options.model, *(engine_config(options, prompt) for prompt in prompts))
    found = run(options)
    one = next(iter(found.values())).short[0]
    kind = "SOFTWARE device" if one.software else "GPU"
    print(f"{options.model.name}: {one.nbytes / 1e9:.2f} GB, {one.device}, {one.driver}, {kind}")
    for state, rounds in found.items():
        print("\n".join(lines(state, rounds)))
    print(f"the tokenizer alone takes {make_tokenizer(ModelFiles.read(options.model)):.2f} s, beside the load")
    if options.json:
        options.json.write_text(json.dumps({state: asdict(rounds) for state, rounds in found.items()}, indent=1))


def add(parts: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the part of first_token.py."""
    part = add_part(parts, "load", run_part, "First tokens of prompts that are sent before a model is loaded.")
    part.add_argument("model", type=Path)
    part.add_argument("--weights", choices=[scheme.value for scheme in WeightScheme], default=WeightScheme.AUTO.value)
    part.add_argument("--device")
    part.add_argument("--repeat", type=count, default=5, metavar="N")
    part.add_argument("--short", type=count, default=16, metavar="N", help="tokens of the short prompt")
    part.add_argument("--long", type=count, metavar="N", help="tokens of the long prompt (default: measured)")
    part.add_argument("--tokens", type=count, default=64, metavar="N", help="tokens to decode")
    part.add_argument("--one-step", action="store_true", help="have a step hold the whole prompt")
    part.add_argument("--only", choices=["cold", "warm"])
    text = "a llama.cpp command that prints its times, see llama_load_time.cpp; {file}"
    part.add_argument("--llama", type=LlamaCommand.parse, metavar="COMMAND", help=text)
    part.add_argument("--gguf", type=Path, metavar="FILE", help="the same model for llama.cpp (default: MODEL)")
    part.add_argument("--json", type=out_file, metavar="FILE")
    part.add_argument("--tokenizer", action="store_true", help=argparse.SUPPRESS)
