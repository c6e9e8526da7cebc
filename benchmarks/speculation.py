"""What proposals gain, from the text, a draft model, and a layer of the model's own that predicts: tokens a second with
and without, and how many were right.

    python benchmarks/speculation.py [--model demo] [--draft MODEL] [--device NAME] [--tokens 128] [--streams 1 4 8]

The model is opened twice, without proposals and with them, and once more with the draft model, or with that layer where
it has one, and is asked the same: to quote a text, to edit a program, and what has nothing to do with its prompt. The
answers have to be the same; where they part, kernels for other numbers of tokens have rounded otherwise. A model that
does not do what it is asked shows what proposals cost, and not what they gain. One without a chat template, a base
model, goes on with a text that is there twice, the second time as far as its first third.

A model whose answers follow a cycle (`tools/make_gguf.py --cycle`) walks along it behind random tokens, others for each
stream, where the text has nothing to propose, and quotes a part of it that stands in its prompt. How often a draft or
that layer is right about it was chosen, and what a step costs is a real model's.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async import Engine, EngineConfig, SamplingParams
from unicorn_async.cli.options import count
from unicorn_async.engine.files import ModelFiles
from unicorn_async.tokenizer import ChatMessage

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from gguf_cycle import FIRST_KEY

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
WALKS = ("walk", "quote")
PROMPT_TOKENS = 256  # random ones
_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Answers:
    """What so many streams were answered, together."""

    tokens: list[list[int]]
    seconds: float
    line: str

    @property
    def tokens_per_s(self) -> float:
        """Of all streams."""
        return sum(map(len, self.tokens)) / self.seconds


def prompt_of(engine: Engine, name: str) -> list[int]:
    """Return what the model is asked, or what it goes on with."""
    if engine.tokenizer.has_chat_template:
        return engine.tokenizer.encode_chat([ChatMessage("user", TASKS[name])])
    material = MATERIALS.get(name)
    return engine.tokenizer.encode(f"{material}\n\n{material[: len(material) // 3]}" if material else TASKS[name])


def walk_prompt(name: str, cycle: range, max_tokens: int, stream: int) -> list[int]:
    """Return random tokens of a cycle; to quote, with what answers them among them."""
    source = random.Random(stream)
    tokens = source.choices(cycle, k=PROMPT_TOKENS)
    if name == "walk":
        return tokens
    start = source.randrange(len(cycle))
    text = [cycle[(start + number) % len(cycle)] for number in range(max_tokens + 4)]
    half = PROMPT_TOKENS // 2
    return [*tokens[:half], *text, *tokens[half:], *text[:4]]


async def answer(engine: Engine, prompt: Sequence[int], max_tokens: int) -> list[int]:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return [token.id async for token in engine.stream(prompt, params)]


async def measure(engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int) -> Answers:
    """Return what a stream for each prompt is answered."""
    for prompt in dict.fromkeys(map(tuple, prompts)):
        await answer(engine, prompt, 4)  # the prompt is there from then on
    before, begun = engine.stats(), time.perf_counter()
    found = await asyncio.gather(*(answer(engine, prompt, max_tokens) for prompt in prompts))
    took_s, after = time.perf_counter() - begun, engine.stats()
    proposed = after.proposed_tokens - before.proposed_tokens
    right = after.proposed_tokens_right - before.proposed_tokens_right
    drafted = after.drafted_tokens - before.drafted_tokens
    drafted_right = after.drafted_tokens_right - before.drafted_tokens_right
    line = (
        f"{after.steps - before.steps:6} steps {proposed:6} proposed {right:6} right,"
        f" of which {drafted} drafted and {drafted_right} right"
    )
    return Answers(found, took_s, line)


def modes_of(options: argparse.Namespace, files: ModelFiles) -> dict[str, EngineConfig]:
    """Return what is compared, by how it is called; the first has no proposals."""
    context = max(_CONTEXT, 2 * (PROMPT_TOKENS + options.tokens))
    lookup = EngineConfig(device=options.device, speculation="lookup", max_context=context)
    modes = {"off": replace(lookup, speculation="off"), "lookup": lookup}
    if options.draft is not None:
        modes[f"lookup, draft {options.draft}"] = replace(lookup, draft=options.draft)
    if files.config.predicts:
        modes["lookup, the model's own layer"] = replace(lookup, speculation="auto")
    return modes


async def run(options: argparse.Namespace) -> None:
    """Measure and print all modes."""
    files = ModelFiles.read(options.model, predicts=True)
    first = (files.checkpoint.gguf_metadata or {}).get(FIRST_KEY)
    cycle = range(first, files.config.vocab_size) if isinstance(first, int) else None
    plain: dict[tuple[str, int], Answers] = {}
    for mode, config in modes_of(options, files).items():
        async with Engine.open(options.model, config=config) as engine:
            await engine.cache_grown()
            await engine.draft_loaded()
            print(f"speculation {mode}: {engine.model_name} on {engine.device.name}", flush=True)
            for streams in options.streams:
                for name in TASKS if cycle is None else WALKS:
                    prompts = [
                        prompt_of(engine, name) if cycle is None else walk_prompt(name, cycle, options.tokens, stream)
                        for stream in range(streams)
                    ]
                    await measure(engine, prompts, options.tokens // 2)  # sizes of steps are tried and timed
                    found = await measure(engine, prompts, options.tokens)
                    known = plain.setdefault((name, streams), found)
                    same = sum(one == other for one, other in zip(known.tokens, found.tokens, strict=True))
                    ratio = found.tokens_per_s / known.tokens_per_s
                    print(
                        f"  {name:6} x {streams:2} {found.tokens_per_s:8.1f} tok/s, {ratio:.2f} times, {found.line};"
                        f" {same} of {streams} answers are the first engine's",
                        flush=True,
                    )


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
