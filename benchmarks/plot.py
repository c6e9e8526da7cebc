"""Plots of reports, as SVG without any library; report.py draws them.

Device, driver and software devices are named under every plot. Both axes of the throughput are logarithmic; whiskers
reach from the lowest to the highest window.
"""

from __future__ import annotations

import math
from collections import defaultdict
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 72, 170, 44, 76
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5f3f", "#5f5f9f", "#999999")
INK, FAINT = "#333333", "#dddddd"
BAR, GAP, LEGEND = 34, 18, 22
FAMILIES = ("attention", "rms_norm", "rope_cache", "gated", "quantize_activations", "row_to_half", "sample", "embed")


def text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", colour: str = INK) -> str:
    """Return words at a place."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{colour}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0) -> str:
    """Return a straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width:g}"/>'


def picture(parts: list[str], width: float, height: float) -> str:
    """Return a whole SVG file."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{width:g}" height="{height:g}" fill="white"/>', *parts, "</svg>", ""])


def source(report: dict[str, Any]) -> str:
    """Return where a report was measured."""
    return f"{report['device']}, {report['driver']}{', SOFTWARE device' if report['software'] else ''}"


def named(report: dict[str, Any]) -> str:
    """Name a report's model and format."""
    return f"{Path(report['model']).name} {report['weights']}"


def ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5, 10, … around a range."""
    steps = [digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5)]
    first = max((step for step in steps if step <= low), default=steps[0])
    last = min((step for step in steps if step >= high), default=steps[-1])
    return [step for step in steps if first <= step <= last]


def throughput(reports: list[dict[str, Any]]) -> str:
    """Draw tokens per second in sum against the number of streams."""
    runs = [run for report in reports for run in report["decode"]]
    streams = sorted({run["streams"] for run in runs})
    levels = ticks(
        min(run["tokens_per_s"]["lowest"] for run in runs), max(run["tokens_per_s"]["highest"] for run in runs)
    )
    x_span = max(math.log(streams[-1] / streams[0]), 1e-9)
    y_span = max(math.log(levels[-1] / levels[0]), 1e-9)

    def x_of(count: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(count / streams[0]) / x_span

    def y_of(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(rate / levels[0]) / y_span

    parts = [text(LEFT, 24, "Decoding: tokens per second, all streams together", size=15)]
    for level in levels:
        parts += [line(LEFT, y_of(level), WIDTH - RIGHT, y_of(level), FAINT)]
        parts += [text(LEFT - 8, y_of(level) + 4, f"{level:,g}", anchor="end")]
    for count in streams:
        parts += [text(x_of(count), HEIGHT - BOTTOM + 18, f"{count}", anchor="middle")]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 36, "streams", anchor="middle"))
    for index, report in enumerate(reports):
        colour = COLOURS[index % len(COLOURS)]
        found = sorted(report["decode"], key=lambda run: run["streams"])
        points = [(x_of(run["streams"]), y_of(run["tokens_per_s"]["median"])) for run in found]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, y), run in zip(points, found, strict=True):
            spread = run["tokens_per_s"]
            parts.append(line(x, y_of(spread["lowest"]), x, y_of(spread["highest"]), colour, 1.5))
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
            parts.append(text(x, y - 8, f"{spread['median']:,.0f}", size=11, anchor="middle", colour=colour))
        x, y = points[-1]
        parts.append(text(x + 26, y + 4, named(report), colour=colour))
    contexts = sorted({round(run["context"]) for run in runs})
    parts.append(text(LEFT, HEIGHT - 24, f"context of {' and '.join(map(str, contexts))} tokens", size=11))
    parts.append(text(LEFT, HEIGHT - 8, "; ".join(sorted({source(report) for report in reports})), size=11))
    return picture(parts, WIDTH, HEIGHT)


def part_name(time: dict[str, Any]) -> str:
    """Name what a dispatch belongs to: a matrix by its shape, another kernel by its family."""
    if time["detail"] and time["kernel"].startswith("linear_"):
        return f"matrix {time['detail'].replace('x', ' × ')}"
    return next((family for family in FAMILIES if time["kernel"].startswith(family)), time["kernel"])


def kernels(report: dict[str, Any]) -> str:
    """Draw which share of a step's time each part takes, by the number of tokens in the step."""
    sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))  # µs of a step, by its tokens
    for time in report["kernel_times"]:
        sums[time["tokens"]][part_name(time)] += time["ns"] / time["steps"] / 1e3
    weight: dict[str, float] = defaultdict(float)
    for parts_us in sums.values():
        total = sum(parts_us.values()) or 1.0
        for name, us in parts_us.items():
            weight[name] += us / total
    shown = sorted(weight, key=lambda name: -weight[name])[: len(COLOURS) - 1]
    names = [*shown, "others"] if len(weight) > len(shown) else shown
    colours = dict(zip(names, COLOURS, strict=False))
    bars_top = TOP + LEGEND * -(-len(names) // 3) + 12
    height, span = bars_top + len(sums) * (BAR + GAP) + 40, WIDTH - LEFT - 40
    parts = [text(LEFT, 24, f"Where a step's time goes: {named(report)}", size=15)]
    for index, name in enumerate(names):
        x, y = LEFT + (index % 3) * span / 3, TOP + LEGEND * (index // 3)
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="12" height="12" fill="{colours[name]}"/>')
        parts.append(text(x + 18, y + 10, name))
    for row, (tokens, parts_us) in enumerate(sorted(sums.items())):
        y, x, total = bars_top + row * (BAR + GAP), float(LEFT), sum(parts_us.values()) or 1.0
        parts.append(text(LEFT, y - 3, f"{tokens} token{'s' * (tokens > 1)}: {total:,.0f} µs in kernels", size=11))
        rest = total - sum(parts_us.get(name, 0.0) for name in shown)
        for name in names:
            us = rest if name == "others" else parts_us.get(name, 0.0)
            wide = span * us / total
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{BAR - 8}" fill="{colours[name]}"/>'
            )
            if us / total > 0.05:
                parts.append(text(x + wide / 2, y + 17, f"{us / total:.0%}", size=11, anchor="middle", colour="white"))
            x += wide
    parts.append(text(LEFT, height - 24, "every dispatch timed by the device's clock, which slows steps down", size=11))
    parts.append(text(LEFT, height - 8, source(report), size=11))
    return picture(parts, WIDTH, height)
