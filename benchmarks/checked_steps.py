#!/usr/bin/env python3
"""What steps take that check proposed tokens of one sequence, beside a step of one token.

    checked_steps.py MODEL [--device DEVICE] [--context 512] [--tokens 192] [--proposed 0 1 2 ... 15] [--kernels]
                     [--json FILE]

The engine answers a prompt of random tokens, and answers it again for each number of proposals, its first answer as the
prediction, so that all are right but where kernels for other numbers of tokens round otherwise. How many are proposed
a step is set, and not chosen by what it gains. Seconds of a step are the device's own, those of a token the wall's.
With `--kernels` every dispatch is timed, which takes time itself, and a table says where it goes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass
from unittest import mock

from bench_device import DEVICE_HELP, check_fit, device_text
from command_line import out_file, run_script

from unicorn_async.cli.bench_kernels import kernel_lines
from unicorn_async.cli.bench_limits import measure_limits
from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, SpeculationMode
from unicorn_async.engine.engine import Engine
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.speculation import MAX_PROPOSED
from unicorn_async.scheduler.step_costs import StepCosts


@dataclass(frozen=True, slots=True)
class CheckedSteps:
    """Steps of `num_tokens` of one sequence: the median of their device's time, and what came of them."""

    num_tokens: int
    num_steps: int
    step_s: float
    tokens_per_s: float
    num_proposed: int
    num_right: int


async def ask(engine: Engine, prompt: list[int], num_tokens: int, prediction: tuple[int, ...]) -> list[int]:
    """Return the tokens of an answer."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    return [token.id async for token in engine.stream(prompt, params, prediction=prediction)]


async def measure(engine: Engine, prompt: list[int], answer: list[int], proposed: int) -> CheckedSteps:
    """Answer with so many proposals a step; the first time is a warm-up."""
    times: dict[int, list[float]] = {}

    def worth(costs: StepCosts, num_tokens: int, expected: float, rate: float, most: int, **others: object) -> int:
        return min(proposed, most)

    def observe(costs: StepCosts, num_tokens: int, seconds: float) -> None:
        times.setdefault(num_tokens, []).append(seconds)

    with mock.patch.object(StepCosts, "worth", worth), mock.patch.object(StepCosts, "observe", observe):
        await ask(engine, prompt, len(answer), tuple(answer))
        times.clear()
        before, started = engine.stats(), time.perf_counter()
        await ask(engine, prompt, len(answer), tuple(answer))
        took_s, after = time.perf_counter() - started, engine.stats()
    steps = times.get(proposed + 1, [])
    return CheckedSteps(
        num_tokens=proposed + 1,
        num_steps=len(steps),
        step_s=statistics.median(steps) if steps else 0.0,
        tokens_per_s=len(answer) / took_s,
        num_proposed=after.proposed_tokens - before.proposed_tokens,
        num_right=after.proposed_tokens_right - before.proposed_tokens_right,
    )


async def run(options: argparse.Namespace) -> None:
    """Measure and print all numbers of proposals."""
    found = []
    async with Engine.open(options.model, config=options.config) as engine:
        await engine.loaded()
        await engine.cache_grown()
        print(f"{engine.model_name} on {device_text(engine.device)}", flush=True)
        source = random.Random(1)
        prompt = [source.randrange(3, engine.model_spec.vocab_size) for _ in range(options.context)]
        answer = await ask(engine, prompt, options.tokens, ())
        for proposed in options.proposed:
            steps = await measure(engine, prompt, answer, proposed)
            found.append(steps)
            times = f", {steps.step_s / found[0].step_s:.2f} times" if found[0].step_s else ""
            print(
                f"{steps.num_tokens} tokens: {steps.step_s * 1e3:.3f} ms a step{times}, {steps.num_steps} steps, "
                f"{steps.tokens_per_s:.1f} tok/s, {steps.num_right} of {steps.num_proposed} proposals right",
                flush=True,
            )
        device = engine.device
    if options.kernels:
        print("\n".join(kernel_lines(engine, measure_limits(str(device.index)))))
    if options.json is not None:
        facts = {"device": device.name, "software": device.is_software, "model": options.model}
        options.json.write_text(json.dumps({**facts, "steps": [asdict(steps) for steps in found]}, indent=1))


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", help=DEVICE_HELP)
    parser.add_argument("--context", type=count, default=512, help="tokens of the prompt")
    parser.add_argument("--tokens", type=count, default=192, help="of an answer")
    parser.add_argument(
        "--proposed", type=int, nargs="+", default=list(range(MAX_PROPOSED + 1)), choices=range(MAX_PROPOSED + 1)
    )
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--json", type=out_file)
    options = parser.parse_args()
    options.config = EngineConfig(
        device=options.device,
        speculation=SpeculationMode.LOOKUP,
        max_context=options.context + options.tokens + 16,
        time_kernels=options.kernels,
    )
    check_fit(parser, options.model, options.config)
    asyncio.run(run(options))


if __name__ == "__main__":
    run_script(main)
