"""Where the time of steps goes, kernel by kernel, as a table for people and as JSON for scripts."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.cli.bench_limits import Limits
    from unicorn_async.engine.engine import Engine
    from unicorn_async.step.kernel_times import KernelTime

_HEADS = ("kernel", "shape", "per step", "µs", "µs/step", "share", "GB/s", "of copy", "TFLOP/s", "of most")


def kernel_lines(engine: Engine, limits: Limits) -> list[str]:
    """Return a table for each size of a step, and what the columns are; the engine may be closed."""
    lines = []
    for tokens, group in groupby(engine.kernel_times(), key=lambda time: time.tokens):
        times = list(group)
        total = sum(time.ns for time in times)
        steps = times[0].steps
        title = f"steps of up to {tokens} tokens: {steps} of {total / steps / 1e3:,.0f} µs"
        lines += [title, *_table(times, total, limits), ""]
    return [
        *lines,
        "Times contain the barrier before a dispatch, and the clocks themselves.",
        "GB/s are of a product's weights, of the keys and values that attention's queries see, of queries and results,",
        "and of what other kernels read and write; each is counted once, and a cache may hold it. TFLOP/s are of",
        f"products and attention. Shares are of the rate of a copy by {limits.copied_by}, read and written, and of the",
        "highest rate of operations, both measured after the steps.",
        *limits.lines(),
    ]


def kernels_json(engine: Engine, limits: Limits) -> dict[str, object]:
    """Return all sums, what they are compared with, and on what device."""
    info = engine.device
    return {
        "model": engine.model_name,
        "device": info.name,
        "driver": f"{info.driver_name} {info.driver_info}",
        "software": info.is_software,
        "limits": asdict(limits),
        "kernels": [asdict(time) for time in engine.kernel_times()],
    }


def _table(times: list[KernelTime], total: int, limits: Limits) -> list[str]:
    rows = [_HEADS, *(_row(time, total, limits) for time in times)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _row(time: KernelTime, total: int, limits: Limits) -> tuple[str, ...]:
    bytes_per_s, flops_per_s = time.nbytes / time.us * 1e6, time.flops / time.us * 1e6
    return (
        time.kernel,
        time.detail,
        f"{time.dispatches / time.steps:.1f}",
        f"{time.us:.1f}",
        f"{time.ns / time.steps / 1e3:.0f}",
        f"{time.ns / total:.1%}",
        _rate(bytes_per_s / 1e9, 0),
        _share(bytes_per_s / limits.copy_bytes_per_s),
        _rate(flops_per_s / 1e12, 2),
        _share(flops_per_s / limits.flops_per_s),
    )


def _rate(value: float, decimals: int) -> str:
    """Return a rate with so many decimals, small ones with two digits; none where nothing was counted."""
    if not value:
        return ""
    return f"{value:.{decimals}f}" if value >= 10 ** (1 - decimals) else f"{value:.2g}"


def _share(value: float) -> str:
    return (f"{value:.0%}" if value >= 0.1 else f"{value:.1%}") if value else ""
