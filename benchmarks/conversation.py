#!/usr/bin/env python3
"""What a turn of a conversation costs, of the engine alone: seconds to its first token, with the prefix cache or not.

    conversation.py MODEL [--turns 20] [--system 2000] [--question 200] [--answer 300] [--streams 16] [--common 4000]
                    [--every 5] [--device DEVICE] [--llama-server "COMMAND {file} {port}"] [--json FILE]

The conversation's tokens are drawn at random, but for the answers, which the model gives: no tokenizer is in the way.
Of a model with too few positions for them, the lengths that are not asked for are shorter, all by the same share.
Each turn sends everything that was before. Without the cache are the first, the last and some turns between, sent once
more with a salt that nobody had: the same engine computes them from their start. At last so many streams ask at once
behind a common prompt: it is computed once. Behind that llama-server, if a command is given that starts it on the same
GGUF file, leads the same conversation over HTTP, which this engine's figures don't have: tokens in, tokens out, its own
cache on, and sometimes with its cache off for one request.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
import urllib.request

from bench_device import check_fit, device_text
from command_line import LlamaCommand, out_file, run_script
from first_answer import Server

from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, SpeculationMode
from unicorn_async.engine.engine import Engine
from unicorn_async.engine.files import ModelFiles
from unicorn_async.sampling_params import SamplingParams

LENGTHS = {"system": 2000, "question": 200, "answer": 300, "common": 4000}  # in tokens
_OWN = 16  # tokens of a stream behind what all have in common
_BESIDE = 16  # positions that are left free
_WARM_UP = 600  # tokens, where the conversation has so many


def drawn(engine: Engine, length: int, source: random.Random) -> list[int]:
    """Return random tokens."""
    return [source.randrange(3, engine.model_spec.vocab_size) for _ in range(length)]


async def ask(engine: Engine, prompt: list[int], length: int, salt: str = "") -> tuple[float, list[int], int]:
    """Answer a prompt; return the seconds to the first token, the answer, and how many tokens were computed before."""
    params = SamplingParams(max_tokens=length, ignore_eos=True)
    started, first_s, ids, found = time.perf_counter(), 0.0, [], 0
    async for token in engine.stream(prompt, params, cache_salt=salt):
        first_s = first_s or time.perf_counter() - started
        ids.append(token.id)
        found = token.num_prompt_found
    return first_s, ids, found


async def turns(engine: Engine, options: argparse.Namespace, source: random.Random) -> list[dict[str, float]]:
    """Lead the conversation; a row for each turn."""
    history, rows = drawn(engine, options.system, source), []
    for turn in range(1, options.turns + 1):
        history += drawn(engine, options.question, source)
        row: dict[str, float] = {"turn": turn, "prompt": len(history)}
        if turn in (1, options.turns) or turn % options.every == 0:
            row["without"], _, _ = await ask(engine, history, 1, f"turn {turn}")
        row["with"], ids, row["found"] = await ask(engine, history, options.answer)
        history += ids
        rows.append(row)
        without = f", without the cache {row['without']:.3f} s" if "without" in row else ""
        print(
            f"turn {turn}: prompt {len(history) - len(ids)}, found {row['found']}, {row['with']:.3f} s{without}",
            flush=True,
        )
    return rows


def fit(options: argparse.Namespace, max_position: int) -> None:
    """Set the lengths that were not asked for, and the context that all need: no more than the model has, if it can."""
    times = {"system": 1, "question": options.turns, "answer": options.turns}
    asked = sum(getattr(options, name) * count for name, count in times.items() if getattr(options, name) is not None)
    lengths = {name: LENGTHS[name] for name in times if getattr(options, name) is None}
    wanted = sum(length * times[name] for name, length in lengths.items())
    share = min((max_position - _BESIDE - asked) / max(wanted, 1), 1.0)
    for name, length in lengths.items():
        setattr(options, name, max(int(length * share), 1))
    if options.common is None:
        options.common = max(min(LENGTHS["common"], max_position - _OWN - 2 * _BESIDE), 1)
    length = sum(getattr(options, name) * count for name, count in times.items())
    options.context = max(length, options.common + _OWN + _BESIDE) + _BESIDE


def ask_peer(port: int, prompt: list[int], length: int, *, is_cached: bool = True) -> tuple[float, list[int], int]:
    """Have llama-server answer a prompt; return what `ask` does."""
    asked = {"prompt": prompt, "n_predict": length, "cache_prompt": is_cached, "return_tokens": True, "stream": True}
    body = json.dumps({**asked, "temperature": 0, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", body, {"Content-Type": "application/json"})
    started, first_s, ids, computed = time.perf_counter(), 0.0, [], len(prompt)
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            first_s = first_s or time.perf_counter() - started
            event = json.loads(line[6:])
            ids += event.get("tokens") or []
            computed = event.get("timings", {}).get("prompt_n", computed)
    return first_s, ids[:length], len(prompt) - computed


def peer_turns(options: argparse.Namespace) -> list[dict[str, float]]:
    """Lead the conversation with llama-server; the rows are as those of `turns`."""
    source, rows = random.Random(1), []
    command, vocabulary = options.llama_server, options.vocabulary

    def words(port: int) -> list[str]:
        return [word.replace("{file}", options.model).replace("{port}", str(port)) for word in command.words]

    def more(length: int) -> list[int]:
        return [source.randrange(3, vocabulary) for _ in range(length)]

    with contextlib.closing(Server(words, {})) as server:
        while server.health() is None:
            time.sleep(0.1)
        ask_peer(server.port, more(min(_WARM_UP, options.system + options.question)), 8)
        history = more(options.system)
        for turn in range(1, options.turns + 1):
            history += more(options.question)
            row: dict[str, float] = {"turn": turn, "prompt": len(history)}
            row["with"], ids, row["found"] = ask_peer(server.port, history, options.answer)
            if turn == options.turns:
                row["without"], _, _ = ask_peer(server.port, history, 1, is_cached=False)
            history += ids
            rows.append(row)
            print(
                f"llama-server, turn {turn}: prompt {row['prompt']}, found {row['found']}, {row['with']:.3f} s",
                flush=True,
            )
    return rows


async def common(engine: Engine, options: argparse.Namespace, source: random.Random) -> dict[str, float]:
    """Have streams begin alike at the same time."""
    text = drawn(engine, options.common, source)
    prompts = [text + drawn(engine, _OWN, source) for _ in range(options.streams)]
    before, started = engine.stats().tokens_prefilled, time.perf_counter()
    answers = await asyncio.gather(*(ask(engine, prompt, 1) for prompt in prompts))
    return {
        "streams": options.streams,
        "last_s": time.perf_counter() - started,
        "prefilled": engine.stats().tokens_prefilled - before,
        "prompts": sum(map(len, prompts)),
        "found": sum(found for _, _, found in answers),
    }


async def measure(options: argparse.Namespace) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Measure this engine."""
    source = random.Random(1)
    async with Engine.open(options.model, config=options.config) as engine:
        await engine.loaded()
        await engine.cache_grown()
        print(device_text(engine.device))
        print(", ".join(f"{name} {getattr(options, name)}" for name in LENGTHS), flush=True)
        await ask(engine, drawn(engine, min(_WARM_UP, options.system + options.question), source), 8, "warm up")
        options.vocabulary = engine.model_spec.vocab_size
        return await turns(engine, options, source), await common(engine, options, source)


def run(options: argparse.Namespace) -> None:
    """Measure, and print."""
    rows, together = asyncio.run(measure(options))
    first, last = rows[0], rows[-1]
    print(f"turn {last['turn']:.0f} over turn 1: {last['with'] / first['with']:.2f} with the cache", end="")
    print(
        f", {last['without'] / first['without']:.2f} without; without over with: {last['without'] / last['with']:.1f}"
    )
    print(
        "{streams} streams, {prompts} tokens of prompts: {prefilled} computed, {found} found, {last_s:.3f} s".format(
            **together
        )
    )
    peer = peer_turns(options) if options.llama_server is not None else []
    if peer:
        begun, ended = peer[0], peer[-1]
        print(
            f"llama-server, turn {ended['turn']:.0f} over turn 1: {ended['with'] / begun['with']:.2f} with its cache, "
            f"without it {ended['without']:.3f} s; seconds by this engine's: turn 1 {begun['with'] / first['with']:.2f}"
            f", last {ended['with'] / last['with']:.2f}"
        )
    if options.json is not None:
        found = {"model": options.model, "turns": rows, "together": together, "llama-server": peer}
        options.json.write_text(json.dumps(found))


def main() -> None:
    """Parse, and measure."""
    parser = argparse.ArgumentParser(description="Seconds to the first token of each turn of a conversation.")
    parser.add_argument("model")
    for name, default, what in (
        ("turns", 20, "turns"),
        ("streams", 16, "streams that begin alike"),
        ("every", 5, "turns between two that are sent without the cache, too"),
    ):
        parser.add_argument(f"--{name}", type=count, default=default, metavar="N", help=f"{what} (default {default})")
    for name, what in (
        ("system", "tokens before the first question"),
        ("question", "tokens of each question"),
        ("answer", "tokens of each answer"),
        ("common", "tokens that the streams have in common"),
    ):
        shown = f"{what} (default {LENGTHS[name]}, or what the model has positions for)"
        parser.add_argument(f"--{name}", type=count, metavar="N", help=shown)
    parser.add_argument("--device", metavar="DEVICE")
    parser.add_argument("--llama-server", type=LlamaCommand.parse, metavar="COMMAND")
    parser.add_argument("--json", type=out_file, metavar="FILE")
    options = parser.parse_args()
    fit(options, ModelFiles.read(options.model).config.max_position)
    options.config = EngineConfig(
        device=options.device,
        max_context=options.context,
        max_num_seqs=max(options.streams, 2),
        speculation=SpeculationMode.OFF,
    )
    check_fit(parser, options.model, options.config)
    run(options)


if __name__ == "__main__":
    run_script(main)
