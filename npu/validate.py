"""`unicorn npu validate`: runs the kernels on this machine's NPU, compares, measures, and writes a report.

Known answers in float64 at many context lengths, decode and prefill, windowed and global; a soak while a GPU is busy;
dispatch latency, the bandwidth of keys and values, what a sync costs, and a layer with its hand-over from and to the
GPU, through shared memory and through copies. A report says what it is of: machine, driver,
firmware, XRT, build. docs/npu.md says where to send it.
"""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from importlib.metadata import version
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from gpu_load import GpuLoad, check_gpu
from hand_over import hand_over_costs
from known_answers import Question
from task_growth import grow_tasks
from user_names import without_user_names
from validate_options import parse_options

from unicorn_async.errors import NpuError, UnicornError
from unicorn_async.npu.attention import AttentionService
from unicorn_async.npu.context import Context
from unicorn_async.npu.device import Device
from unicorn_async.npu.doctor import examine
from unicorn_async.npu.geometry import CORE_BUFFER_BYTES, HEAD_DIMS, HeadLayout, chip_named
from unicorn_async.npu.host import NpuHost
from unicorn_async.npu.manifest import find_build, find_built, notice
from unicorn_async.npu.measured import MeasuredRates, rates_path, remove_rates, write_rates
from unicorn_async.npu.pace import FEW_TASKS
from unicorn_async.npu.self_check import self_check
from unicorn_async.npu.work import AttentionHeads

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from unicorn_async.npu.manifest import Build

FORMAT = 5
WINDOWS = (0, 48, 1024)
PREFILL_QUERIES = 17
_SYNC_BYTES = (4096, 65536, 1 << 20)


def heads_of(layout: HeadLayout) -> AttentionHeads:
    """Return the heads that are tried: two to a kv head, and as many kv heads as teams of cores."""
    teams = layout.chip.num_teams
    return AttentionHeads(layout, 2 * teams, teams, 64)


async def validate(build: Build, device: Device, options: argparse.Namespace, part: dict[str, Any]) -> None:
    """Fill the report's part on one head_dim; what was measured before an error is in it."""
    part["build"] = {
        "sha256": build.sha256,
        "sources": build.source_sha256,
        "products": build.products.value,
        "toolchain": build.toolchain,
    }
    async with AsyncExitStack() as stack:
        context = Context(device, build)
        stack.callback(context.close)
        attention = AttentionService(context, heads_of(HeadLayout(build.chip, build.head_dim)))
        stack.push_async_callback(attention.close)
        await self_check(attention)
        for context_len, window, queries in product(options.contexts, WINDOWS, (1, PREFILL_QUERIES)):
            if queries <= context_len:
                question = Question(attention.heads, context_len, queries, window)
                part["answers"].append(await _answer(attention, question))
        part["latency_us"] = await _latency(attention, options.repeats)
        part["hand_over_us"] = (
            None if options.no_gpu else await hand_over_costs(attention, options.device, options.repeats)
        )
        part["bandwidth"] = await _bandwidth(attention, max(options.contexts), options.repeats)
        part["computing"] = await _computing(attention, max(options.contexts), options.repeats)
        part["sync_us"] = _sync_cost(attention, options.repeats)
        part["soak"] = await _soak(attention, options)
        part["passed"] = part["soak"]["failure"] is None and all(answer["passed"] for answer in part["answers"])


async def _validate_all(builds: Sequence[Build], device: Device, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the report's parts on all head_dims; an error is in its part, and ends it.

    Rates are kept before runs grow, since that may lose the NPU: last of all, once everything else was right.
    """
    parts: list[dict[str, Any]] = []
    for build in builds:
        part: dict[str, Any] = {"head_dim": build.head_dim, "passed": False, "failure": None, "answers": []}
        parts.append(part)
        try:
            await validate(build, device, options, part)
        except UnicornError as exc:
            part["failure"] = f"{type(exc).__name__}: {exc}"
            break
    measured = [(build, part) for build, part in zip(builds, parts, strict=False) if part["passed"]]
    if options.emulated:  # nobody's engine runs at an emulator's speed
        return parts
    software = NpuHost().npu_software()
    for build, part in zip(builds, parts, strict=False):
        if part["passed"]:
            _keep_rates(options.builds, build, software, part, FEW_TASKS)
        else:
            _drop_rates(options.builds, build)
    if len(measured) < len(builds):
        return parts
    for build, part in measured:
        part["tasks"] = await grow_tasks(device, build, heads_of, max(options.contexts))
        _keep_rates(options.builds, build, software, part, part["tasks"]["tasks_per_run"])
        part["passed"] = part["tasks"]["failure"] is None
        if not part["passed"]:
            break
    return parts


def _drop_rates(folder: Path, build: Build) -> None:
    """Remove what an earlier validation left: engines would go on with its long runs, and call its rates measured."""
    try:
        if remove_rates(folder, build):
            print(f"rates of an earlier validation, removed: {rates_path(folder, build)}")
    except OSError as exc:
        print(f"unicorn npu validate: rates not removed: {rates_path(folder, build)}: {exc.strerror}", file=sys.stderr)


def _keep_rates(folder: Path, build: Build, software: str, part: dict[str, Any], tasks_per_run: int) -> None:
    """Leave what was measured beside the build: `--attention auto` goes by it from now on."""
    rates = MeasuredRates(
        build.sha256,
        software,
        time.strftime("%Y-%m-%d", time.gmtime()),
        part["bandwidth"]["bytes_per_s"],
        part["computing"]["multiply_adds_per_s"],
        part["latency_us"]["p50"] * 1e-6,
        tasks_per_run,
    )
    try:
        print(f"rates for --attention auto, {tasks_per_run} tasks a run: {write_rates(folder, build, rates)}")
    except OSError as exc:
        print(f"unicorn npu validate: rates not kept: {rates_path(folder, build)}: {exc.strerror}", file=sys.stderr)


async def _answer(attention: AttentionService, question: Question) -> dict[str, Any]:
    out = await question.ask(attention)
    error = question.error(out)
    return {
        "context": question.context_len,
        "queries": question.queries,
        "window": question.window,
        "mean_relative_error": _finite(error),
        "passed": error <= attention.precision.mean_error,
    }


async def _latency(attention: AttentionService, repeats: int) -> dict[str, float]:
    """A layer of one token with nothing to read: what a dispatch costs, with all that Python does for it."""
    return _percentiles(await _times(attention, Question(attention.heads, 1, 1, 0), repeats))


async def _bandwidth(attention: AttentionService, context_len: int, repeats: int) -> dict[str, float]:
    """Keys and values that all cores read together, in bytes a second; engines give out blocks in rows where they can.

    Scattered blocks are more tasks of the controller, whose time is no reading.
    """
    layout = attention.heads.layout
    nbytes = attention.heads.num_kv_heads * -(-context_len // layout.chunk_keys) * CORE_BUFFER_BYTES
    found: dict[str, float] = {"context": context_len, "bytes": nbytes}
    for name, is_scattered in (("bytes_per_s", False), ("scattered_bytes_per_s", True)):
        question = Question(attention.heads, context_len, 1, 0, is_scattered=is_scattered)
        found[name] = nbytes / float(np.median(await _times(attention, question, repeats)))
    return found


async def _computing(attention: AttentionService, context_len: int, repeats: int) -> dict[str, float]:
    """Multiply-adds a second of all cores together, each team with a full item."""
    heads = attention.heads
    queries = min(heads.queries_per_item, context_len)
    times = await _times(attention, Question(heads, context_len, queries, 0, is_scattered=False), repeats)
    count = 2 * heads.num_heads * heads.layout.head_dim * queries * context_len
    return {"context": context_len, "queries": queries, "multiply_adds_per_s": count / float(np.median(times))}


async def _times(attention: AttentionService, question: Question, repeats: int) -> list[float]:
    cache, step, out = question.fill(attention), question.prepare(attention), question.new_out()
    try:
        times = []
        for _ in range(repeats + 2):
            start = time.perf_counter()
            await attention.submit(step, q=question.q, cache=cache, out=out)
            times.append(time.perf_counter() - start)
        return times[2:]
    finally:
        await attention.drain()
        cache.close()


def _sync_cost(attention: AttentionService, repeats: int) -> dict[str, dict[str, float]]:
    """What it takes to show one side what the other wrote, in microseconds by bytes, for each direction."""
    cache = attention.allocate_cache(-(-max(_SYNC_BYTES) // attention.heads.cache_bytes(1)), name="NPU sync")
    try:
        costs: dict[str, dict[str, float]] = {}
        for sync in (cache.buffer.to_device, cache.buffer.from_device):
            costs[sync.__name__] = {}
            for nbytes in _SYNC_BYTES:
                start = time.perf_counter()
                for _ in range(repeats):
                    sync(0, nbytes)
                costs[sync.__name__][str(nbytes)] = 1e6 * (time.perf_counter() - start) / repeats
        return costs
    finally:
        cache.close()


async def _soak(attention: AttentionService, options: argparse.Namespace) -> dict[str, Any]:
    """Answer changing questions, one after the other, for the given time.

    The first wrong answer ends it, and so does what ends the GPU's work or the NPU's; that is the `failure`. So is a
    run that had to be done again, here or in the measurements before it, although the answers are right.
    """
    rng = np.random.default_rng(0)
    end = time.monotonic() + options.soak_seconds
    questions = 0
    worst = 0.0
    failure: str | None = None
    load = None if options.no_gpu else GpuLoad(options.device)
    try:
        async with _busy(load):
            while time.monotonic() < end or not questions:
                context_len = int(rng.integers(1, max(options.contexts) + 1))
                queries = int(rng.integers(1, min(context_len, PREFILL_QUERIES) + 1))
                question = Question(attention.heads, context_len, queries, int(rng.choice(WINDOWS)), seed=questions)
                worst = max(worst, question.error(await question.ask(attention)))
                questions += 1
                if worst > attention.precision.mean_error:
                    raise NpuError(f"question {questions}, {question}: mean relative error {worst}")
                if load is not None:
                    load.check()
    except (UnicornError, TimeoutError) as exc:  # a GPU that hangs is a TimeoutError
        failure = f"{type(exc).__name__}: {exc}"
    if failure is None and attention.counts.recoveries:
        failure = f"recoveries: {attention.counts.recoveries}; the driver gave up on runs, which were done again"
    return {
        "seconds": options.soak_seconds,
        "questions": questions,
        "worst_mean_relative_error": _finite(worst),
        "gpu": None if load is None else {"name": load.name, "bytes_copied": load.bytes_copied},
        "failure": failure,
        **asdict(attention.counts),
    }


@asynccontextmanager
async def _busy(load: GpuLoad | None) -> AsyncIterator[None]:
    """Keep the GPU busy meanwhile; raises what kept it from being so."""
    if load is None:
        yield
        return
    await asyncio.to_thread(load.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(load.__exit__, *sys.exc_info())


def _finite(error: float) -> float | None:
    """Return what JSON can say; None where something was not written."""
    return error if np.isfinite(error) else None


def _percentiles(times: Sequence[float]) -> dict[str, float]:
    return {name: 1e6 * float(np.percentile(times, share)) for name, share in (("p50", 50), ("p90", 90), ("p99", 99))}


async def _report(options: argparse.Namespace) -> dict[str, Any]:
    host = NpuHost()
    emulated = None if options.emulated is None else chip_named(options.emulated)
    with Device.open(host) if emulated is None else Device.open_emulated(emulated) as device:
        folder = options.builds
        head_dims = options.head_dim or find_built(folder, device.chip) or HEAD_DIMS[1:2]
        # what is missing or damaged ends it before anything is measured
        builds = [find_build(folder, device.chip, head_dim) for head_dim in head_dims]
        if not options.no_gpu:
            await asyncio.to_thread(check_gpu, options.device)
        parts = await _validate_all(builds, device, options)
        return {
            "format": FORMAT,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "unicorn_async": version("unicorn-async"),
            "python": platform.python_version(),
            "kernel": host.kernel_release(),
            "chip": device.chip.name,
            "emulated": emulated is not None,
            "checks": [] if emulated is not None else [asdict(finding) for finding in examine(host)],
            "head_dims": parts,
            "not_tried": [build.head_dim for build in builds[len(parts) :]],
            "passed": all(part["passed"] for part in parts),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parse_options(arguments, __doc__.splitlines()[0])
    print(notice())
    try:
        report = asyncio.run(_report(options))
    except UnicornError as exc:
        print(f"unicorn npu validate: {exc}", file=sys.stderr)
        return 1
    written = _write(options.out, json.dumps(without_user_names(report), indent=2) + "\n")
    for line in _failures(report):
        print(line)
    where = f"in {options.out}" if written else "what is printed above"
    print(f"{'passed' if report['passed'] else 'FAILED'}; the report is {where}")
    return 0 if report["passed"] and written else 1


def _failures(report: dict[str, Any]) -> Iterator[str]:
    """Return a line for each thing that was not right."""
    for part in report["head_dims"]:
        yield from (f"wrong: {answer}" for answer in part["answers"] if not answer["passed"])
        if part["failure"] is not None:
            yield f"head_dim {part['head_dim']}: {part['failure']}"
        if (soak := part.get("soak")) is not None and soak["failure"] is not None:
            yield f"soak, head_dim {part['head_dim']}: {soak['failure']}"
        if (tasks := part.get("tasks")) is not None and tasks["failure"] is not None:
            stay = f"runs stay at {tasks['tasks_per_run']} tasks"
            yield f"runs with more tasks, head_dim {part['head_dim']}: {tasks['failure']}; {stay}"
    if report["not_tried"]:
        yield f"not tried after that: head_dim {', '.join(map(str, report['not_tried']))}"


def _write(path: Path, text: str) -> bool:
    """Write the report; where that fails after all, print it."""
    try:
        path.write_text(text)
    except OSError as exc:
        print(text)
        print(f"unicorn npu validate: --out: {path}: {exc.strerror}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
