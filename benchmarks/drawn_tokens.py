#!/usr/bin/env python3
"""Whether an engine that proposes draws its first tokens by the model's probabilities: a chi-square over many seeds.

    drawn_tokens.py [--model demo] [--draft MODEL] [--device DEVICE] [--seeds 20000] [--streams 4] [--top-k 4]
                    [--temperature 8] [--prompt "Say something."]

Each seed answers the same prompt with four tokens, of which the first three count. What is expected comes from the
model's logits behind each text of up to two of the kept tokens. The engine is opened without proposals, with a
prediction that is the likeliest text (which is what looking things up proposes as well), and with the draft model, if
there is one. Proposals are made wherever they can be, whatever they cost, so speed is not what this shows. Texts that
are expected less than five times count as one. Where proposals change nothing, the answers are the first engine's, too.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from command_line import positive, run_script

from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, SpeculationMode
from unicorn_async.engine.engine import Engine
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler import speculation
from unicorn_async.scheduler.step_costs import StepCosts
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from unicorn_async.scheduler.sequence import Sequence

Text = tuple[int, ...]

LENGTH = 3
_LEAST_EXPECTED = 5.0


async def probabilities(engine: Engine, prompt: Text, params: SamplingParams) -> dict[Text, float]:
    """Return the probability of each text of three tokens that may come, in double precision."""
    found: dict[Text, float] = {(): 1.0}
    for _ in range(LENGTH):
        after: dict[Text, float] = {}
        for text, probability in found.items():
            logits = (await engine.logits([*prompt, *text]))[-1].astype(np.float64)
            kept = np.argsort(-logits, kind="stable")[: params.top_k]
            mass = np.exp((logits[kept] - logits[kept[0]]) / params.temperature)
            after |= {
                (*text, int(token)): probability * share for token, share in zip(kept, mass / mass.sum(), strict=True)
            }
        found = after
    return found


async def draw(
    engine: Engine, prompt: Text, params: SamplingParams, options: argparse.Namespace, prediction: Text
) -> list[Text]:
    """Return what each seed draws."""
    places = asyncio.Semaphore(options.streams)

    async def one(seed: int) -> Text:
        async with places:
            asked = replace(params, seed=seed)
            tokens = [token.id async for token in engine.stream(prompt, asked, prediction=prediction)]
            return tuple(tokens[:LENGTH])

    return list(await asyncio.gather(*(one(seed) for seed in range(options.seeds))))


def chi_square(drawn: list[Text], expected: dict[Text, float]) -> tuple[float, int]:
    """Return the statistic, and its degrees of freedom."""
    observed = dict.fromkeys(expected, 0)
    seldom = [0.0, 0.0]  # seen and expected
    statistic, cells = 0.0, 0
    for text in drawn:
        if text in observed:
            observed[text] += 1
        else:
            seldom[0] += 1  # what may not come
    for text, probability in expected.items():
        wanted = probability * len(drawn)
        if wanted < _LEAST_EXPECTED:
            seldom = [seldom[0] + observed[text], seldom[1] + wanted]
        else:
            statistic, cells = statistic + (observed[text] - wanted) ** 2 / wanted, cells + 1
    if seldom != [0.0, 0.0]:
        statistic, cells = statistic + (seldom[0] - seldom[1]) ** 2 / max(seldom[1], 1e-9), cells + 1
    return statistic, cells - 1


def propose_always() -> None:
    """Have a few tokens proposed wherever something can be."""

    def worth(costs: StepCosts, num_tokens: int, expected: float, rate: float, most: int, **_: object) -> int:
        return min(most, 2) if rate else 0

    def wished(
        rates: dict[Sequence, float], most: dict[Sequence, int], *_: object, **__: object
    ) -> dict[Sequence, int]:
        return {sequence: min(most[sequence], 2) for sequence in rates}

    StepCosts.worth = worth  # type: ignore[method-assign]
    speculation.wished_drafts = wished


async def run(options: argparse.Namespace) -> None:
    """Open each engine, and print a line for it."""
    propose_always()
    plain = EngineConfig(device=options.device, max_context=512, speculation=SpeculationMode.LOOKUP)
    configs = {"none": replace(plain, speculation=SpeculationMode.OFF), "prediction": plain}
    if options.draft is not None:
        configs["draft"] = replace(plain, draft=options.draft)
    params = SamplingParams(
        temperature=options.temperature, top_k=options.top_k, max_tokens=LENGTH + 1, ignore_eos=True
    )
    first: list[Text] = []
    for name, config in configs.items():
        async with Engine.open(options.model, config=config) as engine:
            await engine.cache_grown()
            await engine.draft_loaded()
            prompt = tuple(engine.tokenizer.encode_chat([ChatMessage("user", options.prompt)]))
            expected = await probabilities(engine, prompt, params)
            likeliest = max(expected, key=expected.__getitem__) if name == "prediction" else ()
            started = time.perf_counter()
            drawn = await draw(engine, prompt, params, options, likeliest)
            took_s, stats = time.perf_counter() - started, engine.stats()
            statistic, freedom = chi_square(drawn, expected)
            first = first or drawn
            same = sum(one == other for one, other in itertools.zip_longest(first, drawn))
            deviations = (statistic - freedom) / (2 * max(freedom, 1)) ** 0.5
            print(
                f"{name}, {engine.model_name} on {engine.device.name}: chi-square {statistic:.1f} with {freedom}"
                f" degrees of freedom, {deviations:+.2f} deviations; {stats.proposed_tokens}"
                f" proposed, {stats.proposed_tokens_right} right, of which {stats.drafted_tokens} drafted and"
                f" {stats.drafted_tokens_right} right; {same} of {len(drawn)} as without; {took_s:.0f} s",
                flush=True,
            )


def main() -> None:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft", help="a smaller model of the same vocabulary")
    parser.add_argument("--device")
    parser.add_argument("--seeds", type=count, default=20_000)
    parser.add_argument("--streams", type=count, default=4, help="side by side; nothing is proposed beside more than 4")
    parser.add_argument("--top-k", type=count, default=4)
    parser.add_argument("--temperature", type=positive, default=8.0, help="a model that is sure of its answer has one")
    parser.add_argument("--prompt", default="Say something.")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    run_script(main)
