"""Measurements as a table for people and as JSON for scripts."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.cli.bench_run import BatchResult
    from unicorn_async.engine.engine import Engine
    from unicorn_async.loader.progress import LoadProgress

_HEADS = ("batch", "prompt tok/s", "decode tok/s", "busy", "host µs/step", "loop CPU ms/tok", "CPU ms/tok")


def report_lines(engine: Engine, results: Sequence[BatchResult]) -> list[str]:
    """Return the table: medians with the lowest and the highest run, and what the columns are."""
    rows = [_HEADS, *(_row(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    first = results[0]
    clock = "by its own timestamps" if engine.stats().attention is None else "as the host saw it"
    legend = [
        f"Medians (lowest to highest of {len(first.decode)}), sums over the batch: prompts of"
        f" {first.prompt_tokens} tokens, then {first.decode_tokens} tokens decoded.",
        f"busy: the device's share of the time, {clock}; CPU: of all threads; both while decoding.",
    ]
    if engine.stats().attention is not None:
        legend.append(f"attention {engine.attention.text()}")
    if engine.device.is_software:
        legend.append("SOFTWARE device: it runs on the CPU, so the last column contains the model's work.")
    return [*table, "", *legend, f"kernels: {', '.join(engine.kernels)}"]


def report_json(engine: Engine, load: LoadProgress, results: Sequence[BatchResult]) -> dict[str, object]:
    """Return everything that was measured, and on what."""
    info = engine.device
    return {
        "model": engine.model_name,
        "architecture": engine.model_spec.architecture,
        "device": info.name,
        "driver": f"{info.driver_name} {info.driver_info}",
        "software": info.is_software,
        "kernels": list(engine.kernels),
        "load": {"bytes": load.bytes_total, "seconds": load.seconds, "bytes_per_s": _ratio(load)},
        "results": [
            {
                **asdict(result),
                "prompt_tokens_per_s": _spread([run.tokens_per_s for run in result.prompt]),
                "decode_tokens_per_s": _spread([run.tokens_per_s for run in result.decode]),
                "decode_device_busy": _spread([run.device_busy for run in result.decode]),
            }
            for result in results
        ],
    }


def _row(result: BatchResult) -> tuple[str, ...]:
    decode = result.decode
    return (
        str(result.batch),
        _cell([run.tokens_per_s for run in result.prompt]),
        _cell([run.tokens_per_s for run in decode]),
        f"{median(run.device_busy for run in decode):.0%}",
        f"{median(1e6 * run.host_s / max(run.steps, 1) for run in decode):.0f}",
        f"{median(_per_token_ms(run.loop_cpu_s, result) for run in decode):.3f}",
        f"{median(_per_token_ms(run.process_cpu_s, result) for run in decode):.3f}",
    )


def _per_token_ms(seconds: float, result: BatchResult) -> float:
    return 1e3 * seconds / (result.batch * (result.decode_tokens + 1))


def _cell(values: Sequence[float]) -> str:
    return f"{_number(median(values))} ({_number(min(values))} to {_number(max(values))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "lowest": min(values), "highest": max(values)}


def _ratio(load: LoadProgress) -> float | None:
    return load.bytes_total / load.seconds if load.seconds > 0 else None
