"""`unicorn bench MODEL`: prompt processing and decoding, and how little of it is the CPU's work."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.cli.banner import banner
from unicorn_async.cli.bench_kernels import kernel_lines, kernels_json
from unicorn_async.cli.bench_limits import measure_limits
from unicorn_async.cli.bench_report import report_json, report_lines
from unicorn_async.cli.bench_run import BatchResult, check_context, measure_decode, measure_prompt
from unicorn_async.cli.bench_sheet import HostFacts, sheet_file, sheet_lines, write_sheet
from unicorn_async.cli.event_loop import run_async
from unicorn_async.cli.log_lines import log_lines
from unicorn_async.cli.options import MODEL_HELP, add_engine_options, count, engine_config
from unicorn_async.cli.progress import ProgressLine, bar, show_load
from unicorn_async.config import SpeculationMode
from unicorn_async.engine.engine import Engine
from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from unicorn_async.config import EngineConfig

_BATCHES = 1, 8, 32  # where nobody asks for others
_SEED = 17  # of the random prompts: every run computes the same


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--batch", type=_counts, metavar="N,N", help="sequences (default 1,8,32, as far as --max-num-seqs goes)"
    )
    parser.add_argument("--prompt", type=count, default=512, metavar="N", help="tokens of a prompt (default 512)")
    parser.add_argument("--tokens", type=count, default=128, metavar="N", help="tokens to decode (default 128)")
    parser.add_argument("--repeat", type=count, default=3, metavar="N", help="runs that count (default 3)")
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="print where the steps' time goes, kernel by kernel, beside what the device can do; in runs that count",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument(
        "--report",
        type=sheet_file,
        metavar="FILE",
        help="write a sheet for others, in Markdown: the machine, what the device can do, speeds, and kernels' times,"
        " for which the model is opened a second time",
    )
    add_engine_options(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    model, config = options.model, engine_config(options)
    if options.speculation is None and config.draft is None:
        # What a model repeats after random prompts is no measure of it; a draft model is asked for.
        config = replace(config, speculation=SpeculationMode.OFF)
    options.batch = _batches(options.batch, options.max_num_seqs, config.max_num_batched_tokens)
    config = replace(config, max_num_seqs=max(config.max_seqs, *options.batch), time_kernels=options.kernels)
    return run_async(_bench(model, config, options))


def _batches(asked: tuple[int, ...] | None, num_seqs: int | None, num_tokens: int) -> tuple[int, ...]:
    """Return the numbers of sequences to measure, all of which decode in one step of so many tokens and sequences.

    Raises:
        ConfigError: more are asked for than the limits allow.
    """
    limits = {"--max-num-seqs": num_seqs, "--max-num-batched-tokens": num_tokens}
    known = {option: limit for option, limit in limits.items() if limit is not None}
    if asked is None:
        return tuple(batch for batch in _BATCHES if batch <= min(known.values()))
    for option, limit in known.items():
        if max(asked) > limit:
            raise ConfigError(f"--batch {max(asked)}: more sequences than {option} {limit} allows in a step")
    return asked


class _Run(NamedTuple):
    """One opening of the model: what was measured in it, in the forms in which it may be told."""

    engine: Engine  # closed
    banner: list[str]
    lines: list[str]
    json: dict[str, object]


async def _bench(model: str | Path, config: EngineConfig, options: argparse.Namespace) -> int:
    with ProgressLine() as line, log_lines(line):
        run = timed = await _open_and_measure(model, config, options, options.repeat, line)
        if not options.kernels:
            print(json.dumps(run.json, indent=2) if options.json else "\n".join(run.lines))
            if options.report is not None:  # clocks between dispatches would slow what was measured
                config = replace(config, time_kernels=True)
                timed = await _open_and_measure(model, config, options, 1, line)
    if options.kernels or options.report is not None:  # only now there is room for the limits' memory
        limits = await asyncio.to_thread(measure_limits, str(run.engine.device.index), validation=config.validation)
        if options.kernels:
            table = kernels_json(run.engine, limits) if options.json else kernel_lines(run.engine, limits)
            print(json.dumps(table, indent=2) if isinstance(table, dict) else "\n".join(table))
        if options.report is not None:
            text = sheet_lines(timed.engine, limits, HostFacts.read(), run.banner, run.lines)
            await asyncio.to_thread(write_sheet, options.report, text)
    return 0


async def _open_and_measure(
    model: str | Path, config: EngineConfig, options: argparse.Namespace, repeat: int, line: ProgressLine
) -> _Run:
    async with Engine.open(model, config=config) as engine:
        check_context(engine, num_prompt=options.prompt, num_tokens=options.tokens)
        lines = banner(engine)
        for text in lines:
            line.note(text)
        load = await show_load(engine, line)
        line.update("loading the draft model" if engine.draft is not None else "writing the weights to the cache")
        await engine.draft_loaded()
        await engine.cache_settled()
        results = await _measure(engine, options, repeat, line)
        line.clear()
        return _Run(engine, lines, report_lines(engine, results), report_json(engine, load, results))


async def _measure(engine: Engine, options: argparse.Namespace, repeat: int, line: ProgressLine) -> list[BatchResult]:
    """Run each batch size once to warm up and then as often as asked for."""
    rng = Random(_SEED)
    runs = 1 + repeat
    done, total = 0, 2 * runs * len(options.batch)
    results = []
    for batch in options.batch:
        prompts, decodes = [], []
        for number in range(runs):
            # A driver may compile in the first dispatch of a kernel, and clocks rise.
            engine.count_kernel_times(wanted=number > 0)
            line.update(f"{bar(done / total)} batch {batch}: prompts of {options.prompt} tokens, run {number}")
            prompts.append(await measure_prompt(engine, rng, batch=batch, num_tokens=options.prompt))
            done += 1
            line.update(f"{bar(done / total)} batch {batch}: decoding {options.tokens} tokens, run {number}")
            decodes.append(await measure_decode(engine, rng, batch=batch, num_tokens=options.tokens))
            done += 1
        results.append(BatchResult(batch, options.prompt, options.tokens, tuple(prompts[1:]), tuple(decodes[1:])))
    return results


def _counts(text: str) -> tuple[int, ...]:
    return tuple(count(part) for part in text.split(","))
