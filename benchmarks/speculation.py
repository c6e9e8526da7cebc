"""What proposals gain, from the text itself and from a draft model: tokens a second with and without, and how many were
right.

    python benchmarks/speculation.py [--model demo] [--draft MODEL] [--device NAME] [--tokens 128] [--streams 1 4 8]

The model is opened twice, without proposals and with them, and a third time with the draft model, and is asked the
same: to quote a text, to edit a program, and what has nothing to do with its prompt. The answers have to be the same;
where they part, kernels for other numbers of tokens have rounded otherwise. A model that does not do what it is asked
shows what proposals cost, and not what they gain. One without a chat template, a base model, goes on with a text that
is there twice, the second time as far as its first third.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async import Engine, EngineConfig, SamplingParams
from unicorn_async.cli.options import count
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT = (
    "The harbour lies behind two long walls of grey stone. In the morning the boats go out through the gap between"
    " them, the small ones first, and in the evening they come back in the opposite order. Nobody has ever"
    " written down why."
)
PROGRAM = """def total(prices, tax):
    result = 0
    for price in prices:
        result += price * (1 + tax)
    return result


def report(prices, tax):
    print("prices:", len(prices))
    print("total:", total(prices, tax))
"""
TASKS = {
    "quote": f"Repeat this text word for word, and nothing else:\n\n{TEXT}",
    "edit": f"Rename `result` to `amount` in this program. Print the whole program, and nothing else:\n\n{PROGRAM}",
    "other": "Tell a story about a lighthouse.",
}


MATERIALS = {"quote": TEXT, "edit": PROGRAM}


def prompt_of(engine: Engine, name: str) -> list[int]:
    """Return what the model is asked, or what it goes on with."""
    if engine.tokenizer.has_chat_template:
        return engine.tokenizer.encode_chat([ChatMessage("user", TASKS[name])])
    material = MATERIALS.get(name)
    return engine.tokenizer.encode(f"{material}\n\n{material[: len(material) // 3]}" if material else TASKS[name])


async def answer(engine: Engine, prompt: Sequence[int], max_tokens: int) -> list[int]:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return [token.id async for token in engine.stream(prompt, params)]


async def measure(engine: Engine, prompt: Sequence[int], streams: int, max_tokens: int) -> tuple[list[list[int]], str]:
    """Return the answers of so many streams, and a line about them."""
    await answer(engine, prompt, 4)  # the prompt is there from then on
    before, begun = engine.stats(), time.perf_counter()
    found = await asyncio.gather(*(answer(engine, prompt, max_tokens) for _ in range(streams)))
    took_s, after = time.perf_counter() - begun, engine.stats()
    proposed = after.proposed_tokens - before.proposed_tokens
    right = after.proposed_tokens_right - before.proposed_tokens_right
    drafted = after.drafted_tokens - before.drafted_tokens
    drafted_right = after.drafted_tokens_right - before.drafted_tokens_right
    return found, (
        f"{sum(map(len, found)) / took_s:8.1f} tok/s {after.steps - before.steps:6} steps"
        f" {proposed:6} proposed {right:6} right, of which {drafted} drafted and {drafted_right} right"
    )


async def run(options: argparse.Namespace) -> None:
    answers: dict[tuple[str, int], list[list[int]]] = {}
    plain = EngineConfig(device=options.device, speculation="lookup", max_context=2048)
    configs = {"off": replace(plain, speculation="off"), "lookup": plain}
    if options.draft is not None:
        configs[f"lookup, draft {options.draft}"] = replace(plain, draft=options.draft)
    for mode, config in configs.items():
        async with Engine.open(options.model, config=config) as engine:
            await engine.cache_grown()
            await engine.draft_loaded()
            print(f"speculation {mode}: {engine.model_name} on {engine.device.name}")
            for streams in options.streams:
                for name in TASKS:
                    prompt = prompt_of(engine, name)
                    await measure(engine, prompt, streams, options.tokens // 2)  # sizes of steps are tried and timed
                    found, line = await measure(engine, prompt, streams, options.tokens)
                    known = answers.setdefault((name, streams), found)
                    same = sum(one == other for one, other in zip(known, found, strict=True))
                    print(f"  {name:6} x {streams:2} {line}; {same} of {streams} answers are the first engine's")


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft", help="a smaller model of the same vocabulary")
    parser.add_argument("--device")
    parser.add_argument("--tokens", type=count, default=128, help="of each answer")
    parser.add_argument("--streams", type=count, nargs="+", default=[1, 4, 8])
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
