"""Where the time of steps goes, kernel by kernel, as a table for people and as JSON for scripts."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.engine.engine import Engine
    from unicorn_async.engine.kernel_times import KernelTime

_HEADS = ("kernel", "shape", "per step", "µs", "µs/step", "share", "GB/s", "TFLOP/s")


def kernel_lines(engine: Engine) -> list[str]:
    """Return a table for each size of a step, and what the columns are."""
    lines = []
    for tokens, group in groupby(engine.kernel_times(), key=lambda time: time.tokens):
        times = list(group)
        total = sum(time.ns for time in times)
        steps = times[0].steps
        title = f"steps of up to {tokens} tokens: {steps} of {total / steps / 1e3:,.0f} µs"
        lines += [title, *_table(times, total), ""]
    return [*lines, "Times contain the barrier before a dispatch, and the clocks themselves. GB/s are of weights."]


def kernels_json(engine: Engine) -> dict[str, object]:
    """Return all sums, and on what device."""
    info = engine.device
    return {
        "model": engine.model_name,
        "device": info.name,
        "driver": f"{info.driver_name} {info.driver_info}",
        "software": info.is_software,
        "kernels": [asdict(time) for time in engine.kernel_times()],
    }


def _table(times: list[KernelTime], total: int) -> list[str]:
    rows = [_HEADS, *(_row(time, total) for time in times)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _row(time: KernelTime, total: int) -> tuple[str, ...]:
    return (
        time.kernel,
        time.detail,
        f"{time.dispatches / time.steps:.1f}",
        f"{time.us:.1f}",
        f"{time.ns / time.steps / 1e3:.0f}",
        f"{time.ns / total:.1%}",
        f"{time.nbytes / time.us / 1e3:.0f}" if time.nbytes else "",
        f"{time.flops / time.us / 1e6:.2f}" if time.flops else "",
    )
