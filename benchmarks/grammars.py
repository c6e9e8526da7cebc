"""What grammars cost: masks at a large vocabulary, and other streams beside answers that follow one.

    python benchmarks/grammars.py masks [--tokens 262144] [--answers 40]
    python benchmarks/grammars.py streams [--model demo] [--device NAME] [--plain 4] [--guided 4] [--seconds 5]

`masks` measures the process that follows grammars from the event loop that asks it: a vocabulary is made up of words,
numbers and marks, and answers take tokens at random of those that may come. `streams` runs plain streams alone, then
beside as many with a grammar, in turns in one run, and compares their rates with those beside plain ones instead. On a
machine that does other things, too, the share of the steps in which a plain stream has a token says more.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import string
import time
from array import array
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async import Engine, EngineConfig, Grammar, SamplingParams
from unicorn_async.guidance.messages import Advance, Begin, End, Masks
from unicorn_async.guidance.process import GuidanceProcess
from unicorn_async.guidance.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,12}$"}, "maxItems": 8},
        "author": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": ["integer", "null"]}},
            "required": ["name", "age"],
            "additionalProperties": False,
        },
        "kind": {"enum": ["article", "note", "letter"]},
        "rating": {"type": "number"},
    },
    "required": ["title", "tags", "author", "kind", "rating"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": Grammar.json_schema(SCHEMA),
    "object": Grammar.json_object(),
    "regex": Grammar.regex(r"([A-Z][a-z]+ ){3,20}[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "lark": Grammar.lark('start: sum\nsum: term (("+" | "-") term)*\nterm: NUMBER | "(" sum ")"\nNUMBER: /[0-9]+/'),
}
MOST_TOKENS = 80  # of an answer
WARM_UP_S = 1.0


def made_vocabulary(num_tokens: int) -> Vocabulary:
    """Bytes, and made-up words, numbers and marks, with and without a space in front."""
    rng = random.Random(1)
    words = dict.fromkeys(bytes((byte,)) for byte in range(256))
    while len(words) < num_tokens - 1:
        letters = string.ascii_lowercase if rng.random() < 0.85 else '{}[]":, \n0123456789'
        words["".join([rng.choice(("", " ")), *rng.choices(letters, k=rng.randint(1, 9))]).encode()] = None
    data, ends = bytearray(), array("Q")
    for word in [*words, b"<end>"]:
        data += word
        ends.append(len(data))
    return Vocabulary(bytes(data), ends, {num_tokens - 1: "<end>"}, (num_tokens - 1,), num_tokens)


def percentiles(times_s: Sequence[float]) -> str:
    p50, p90, p99, most = np.percentile(times_s, (50, 90, 99, 100)) * 1e3
    return f"p50 {p50:.3f}  p90 {p90:.3f}  p99 {p99:.3f}  max {most:.3f} ms"


def cpu_times(vocabulary: Vocabulary, num_answers: int) -> None:
    """Measure what each mask takes of a core, in this process, whatever else the machine does."""
    from unicorn_async.guidance.matchers import Matchers

    began = time.thread_time()
    matchers, rng = Matchers(vocabulary), np.random.default_rng(0)
    print(f"on a core: the vocabulary {time.thread_time() - began:.2f} s")
    for name, grammar in GRAMMARS.items():
        times_s: list[float] = []
        for _ in range(num_answers):
            mask = matchers.open(0, grammar)
            for _ in range(MOST_TOKENS):
                token_id = drawn(mask, rng)
                if token_id == vocabulary.size - 1:
                    break
                began = time.thread_time()
                mask = matchers.advance(0, [token_id]).mask
                times_s.append(time.thread_time() - began)
            matchers.close(0)
        print(f"on a core: {name:7} {len(times_s)} masks: {percentiles(times_s)}")


def drawn(mask: bytes | None, rng: np.random.Generator) -> int:
    """A token that may come."""
    assert mask is not None
    return int(rng.choice(np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))))


async def measure_masks(num_tokens: int, num_answers: int) -> None:
    vocabulary = made_vocabulary(num_tokens)
    cpu_times(vocabulary, num_answers)
    started = time.perf_counter()
    maker = await GuidanceProcess.start(vocabulary)
    numbers, rng = iter(range(1 << 30)), np.random.default_rng(0)
    for name, grammar in GRAMMARS.items():
        times_s: list[float] = []
        key, began = next(numbers), time.perf_counter()
        follower = await maker.copy()
        await follower.compile(grammar, is_short=False)
        await follower.ask(Begin(key))
        first_s = time.perf_counter() - began
        for _ in range(num_answers):
            key = next(numbers)
            mask = await follower.ask(Begin(key))
            assert isinstance(mask, bytes)
            for _ in range(MOST_TOKENS):
                token_id = drawn(mask, rng)
                if token_id == num_tokens - 1:
                    break
                began = time.perf_counter()
                masks = await follower.ask(Advance(key, (token_id,)))
                assert isinstance(masks, Masks)
                mask = masks.mask
                times_s.append(time.perf_counter() - began)
            await follower.ask(End(key))
        follower.close()
        since = f", {began - started:.1f} s since the start" if name == "schema" else ""
        print(f"asked: {name:7} first use {1e3 * first_s:.1f} ms{since}; {len(times_s)} masks: {percentiles(times_s)}")
    await maker.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{num_tokens} tokens; the process took {used:.0f} MB at most")


class Streams:
    """Answers without an end, one after the other, and how many tokens they had."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.tokens = {"plain": 0, "guided": 0}

    async def run(self, kind: str, seed: int) -> None:
        grammar = Grammar.regex(r"([a-z]{3,9} ){400}") if kind == "guided" else None
        while True:
            sampling = SamplingParams(
                max_tokens=300, temperature=1.0, seed=seed, ignore_eos=grammar is None, grammar=grammar
            )
            async for _ in self._engine.stream("What is it?", sampling):
                self.tokens[kind] += 1


async def rates(engine: Engine, kinds: Sequence[str], seconds: float) -> dict[str, float]:
    """Tokens a second of all streams of each kind, and in how many of the steps each plain stream has a token."""
    streams = Streams(engine)
    tasks = [asyncio.create_task(streams.run(kind, seed)) for seed, kind in enumerate(kinds)]
    await asyncio.sleep(WARM_UP_S)
    before, began, steps = dict(streams.tokens), time.perf_counter(), engine.stats().steps
    await asyncio.sleep(seconds)
    took_s = time.perf_counter() - began
    found = {kind: (count - before[kind]) / took_s for kind, count in streams.tokens.items()}
    steps = engine.stats().steps - steps
    found["share"] = (streams.tokens["plain"] - before["plain"]) / max(steps * kinds.count("plain"), 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return found


async def measure_streams(args: argparse.Namespace) -> None:
    config = EngineConfig(device=args.device, max_context=512, max_num_seqs=args.plain + args.guided)
    async with Engine.open(args.model, config=config) as engine:
        await engine.loaded()
        await engine.check_grammar(Grammar.choice(["warm"]))
        print(f"{engine.model_name} on {engine.device.name}, {args.plain} plain streams; tokens/s of each")
        ratios: list[float] = []
        for turn in range(args.turns):
            plain, guided = ["plain"] * args.plain, ["guided"] * args.guided
            alone = (await rates(engine, plain, args.seconds))["plain"]
            beside_plain = await rates(engine, ["plain"] * (args.plain + args.guided), args.seconds)
            mixed = await rates(engine, plain + guided, args.seconds)
            only = (await rates(engine, guided, args.seconds))["guided"]
            peers = beside_plain["plain"] * args.plain / (args.plain + args.guided)
            ratios.append(mixed["plain"] / peers)
            print(
                f"turn {turn + 1}: {alone / args.plain:.1f}; {peers / args.plain:.1f} beside {args.guided} plain, "
                f"{mixed['plain'] / args.plain:.1f} beside {args.guided} guided (ratio {ratios[-1]:.3f}, "
                f"in {mixed['share']:.3f} of the steps), these "
                f"{mixed['guided'] / args.guided:.1f}; {args.guided} guided alone {only / args.guided:.1f}"
            )
        print(f"beside guided streams plain ones have {np.median(ratios):.3f} of their rate beside plain ones (median)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    masks = commands.add_parser("masks")
    masks.add_argument("--tokens", type=int, default=262_144)
    masks.add_argument("--answers", type=int, default=40)
    streams = commands.add_parser("streams")
    streams.add_argument("--model", default="demo")
    streams.add_argument("--device")
    streams.add_argument("--plain", type=int, default=4)
    streams.add_argument("--guided", type=int, default=4)
    streams.add_argument("--seconds", type=float, default=5.0)
    streams.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    asyncio.run(measure_masks(args.tokens, args.answers) if args.command == "masks" else measure_streams(args))


if __name__ == "__main__":
    main()
