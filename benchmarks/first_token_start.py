#!/usr/bin/env python3
"""One start of a process that asks a model at once, or once it is loaded; `first_token.py load` runs it.

    first_token_start.py MODEL --started S --prompt N [--tokens N] [--weights SCHEME] [--device NAME] [--wait]
                         [--one-step]

It imports what such a process needs and nothing else, because its imports are in the measured time, and opens Vulkan
beside them, as `unicorn generate` does it. It prints one JSON object. `--started` is the moment of `time.monotonic` at
which the process was begun.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from unicorn_async.gpu.instance_start import InstanceStart

VULKAN = InstanceStart() if any(argument.startswith("--started=") for argument in sys.argv) else None

from unicorn_async.config import EngineConfig, WeightScheme  # noqa: E402 - while Vulkan is opened
from unicorn_async.engine.engine import Engine  # noqa: E402
from unicorn_async.errors import UnicornError  # noqa: E402
from unicorn_async.sampling_params import SamplingParams  # noqa: E402 - while Vulkan is opened

CONTEXT = 256  # beside the prompt
REST_S = 3.0  # without work, after which a GPU may have to wake up
SETTLED = 4  # tokens: until then the commands of the first decoding steps are recorded, before or after the first token


@dataclass(frozen=True, slots=True)
class Start:
    """One start; moments in seconds since the process was started.

    `load_s` is how long the load took, which begins before the engine is open, and `alone_s` how long the prompt takes
    in the loaded model, run again. Where it was waited for the load, decoding is timed twice more: behind other work,
    and when the device has had none for REST_S; `rested_share` is how fast the second was beside the first.
    """

    waited: bool
    prompt: int
    nbytes: int
    opened_s: float
    load_s: float
    read_s: float  # the last byte was read and handed over
    active_s: float
    first_token_s: float
    decode_tokens_per_s: float
    rested_share: float | None
    alone_s: float
    num_layers: int
    device: str
    driver: str
    software: bool

    @property
    def late_s(self) -> float:
        """How long after the last byte the first token came."""
        return self.first_token_s - self.read_s

    @property
    def after_active_s(self) -> float:
        """How long after the last layer's activation the first token came."""
        return self.first_token_s - self.active_s

    @property
    def layer_s(self) -> float:
        """One layer of the prompt, with its share of the head."""
        return self.alone_s / self.num_layers


def engine_config(options: argparse.Namespace, prompt: int) -> EngineConfig:
    """Return a configuration with room for one prompt of so many tokens and its answer."""
    return EngineConfig(
        device=options.device,
        allow_software=True,
        weights=WeightScheme(options.weights),
        skip_tokenizer=True,
        max_num_seqs=1,
        max_context=prompt + options.tokens + CONTEXT,
        **({"max_num_batched_tokens": max(512, prompt)} if options.one_step else {}),
    )


def decode_rate(arrived: list[float]) -> float:
    """Return tokens per second after the first few."""
    return (len(arrived) - SETTLED) / (arrived[-1] - arrived[SETTLED - 1])


async def one_start(options: argparse.Namespace) -> Start:
    """Open the model, ask, and note when what happened."""

    def now() -> float:
        return time.monotonic() - options.started

    rng = random.Random(options.prompt)
    moments = {"read": 0.0, "active": 0.0}

    async def follow(engine: Engine) -> None:
        async for progress in engine.load_progress():
            if not moments["read"] and progress.bytes_loaded == progress.bytes_total:
                moments["read"] = now()
        moments["active"] = now()

    def prompt(vocab_size: int) -> list[int]:
        return [rng.randrange(vocab_size // 2, vocab_size) for _ in range(options.prompt)]

    config = engine_config(options, options.prompt)
    params = SamplingParams(max_tokens=options.tokens, ignore_eos=True, temperature=0.0)
    async with Engine.open(options.model, config=config, vulkan=VULKAN) as engine:
        opened, size = now(), engine.model_spec.vocab_size
        if engine.progress.done and not options.wait:
            raise SystemExit("the load ended before the engine was open: the model is too small to ask behind its load")
        following = asyncio.create_task(follow(engine))
        if options.wait:
            await following
        arrived = [now() async for _ in engine.stream(prompt(size), params)]
        await following
        rested_share = None
        if options.wait:
            busy = [now() async for _ in engine.stream(prompt(size), params)]
            await asyncio.sleep(REST_S)
            rested = [now() async for _ in engine.stream(prompt(size), params)]
            rested_share = decode_rate(rested) / decode_rate(busy)
        alone_s = 0.0
        for _ in range(2):  # the first of them records the step's commands
            asked = now()
            async for _ in engine.stream(prompt(size), SamplingParams(max_tokens=1, ignore_eos=True)):
                alone_s = now() - asked
        return Start(
            options.wait,
            options.prompt,
            engine.progress.bytes_total,
            opened,
            engine.progress.seconds,
            moments["read"],
            moments["active"],
            arrived[0],
            decode_rate(arrived),
            rested_share,
            alone_s,
            engine.model_spec.num_layers,
            engine.device.name,
            f"{engine.device.driver_name} {engine.device.driver_info}",
            engine.device.is_software,
        )


def main() -> None:
    """Start, ask and print."""
    parser = argparse.ArgumentParser(description="One start, which `first_token.py load` times.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--started", type=float, required=True)
    parser.add_argument("--prompt", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--weights", choices=[scheme.value for scheme in WeightScheme], default=WeightScheme.AUTO.value)
    parser.add_argument("--device")
    for name in ("--wait", "--one-step"):
        parser.add_argument(name, action="store_true")
    options = parser.parse_args()
    if options.prompt < 1 or options.tokens <= SETTLED:
        parser.error(f"expected a prompt, and more tokens than {SETTLED}, the first, which do not count")
    try:
        print(json.dumps(asdict(asyncio.run(one_start(options)))))
    except UnicornError as exc:
        print(f"a prompt of {options.prompt}: {exc}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
