#!/usr/bin/env python3
"""The estimate for RDNA3 beside what users of llama.cpp published for such chips.

    rdna3_seen.py [--models MODEL...] [--json FILE]

For each figure: the most that rdna3_estimate.py gives our kernels for that model and chip, what was seen, the ratio of
the two, and the share of the rate that bounds the step, which makes the estimate what was seen: of the memory's rate
for decoding, of the instructions' for prompts, with DISPATCH_US for each dispatch. Kernels, dispatches and bytes are
ours; llama.cpp's own kernels for prompts are in rdna3_llama.py. So a share says what the estimate has to be multiplied
by to come out at what another engine reaches there, and not how good that engine's kernels are.

Types of files that are not known here have others in their place, which the last column tells. Memory is what a report
says of its machine or, where it says nothing, the chip's in rdna3.py.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import product

from command_line import out_file, run_script
from rdna3 import CHIPS, choose_driver
from rdna3_driver import Compiler
from rdna3_estimate import DISPATCH_US, Estimator, shares_of, step_us
from rdna3_models import Model

from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.gpu.instance import Instance
from unicorn_async.hybrid.figures import OPEN_XDNA, SEEN_DECODED_PER_S, SEEN_READ_PER_S
from unicorn_async.ops.subgroups import MATRIX_FEATURE

PROMPT, DECODED = 512, 64  # tokens of llama-bench's prompt; in front of the middle one of 128 that it decodes
LLAMA = "https://github.com/ggml-org/llama.cpp"
TILES, LARGE_TILE, ISSUE = f"{LLAMA}/pull/28611", f"{LLAMA}/pull/27554", f"{LLAMA}/issues/28843"
MIXTURES = f"{LLAMA}/issues/22375"
HOMELAB = "https://github.com/deseven/strixhalo-homelab/issues/11"
AMDVLK = "https://github.com/GPUOpen-Drivers/AMDVLK/issues/420"
INT8_MATRICES = f"{LLAMA}/pull/27952"
WINDOWS = "https://github.com/sudoingX/qwen38-mtp/pull/69"
# Half of what a Ryzen AI Max has: 32 of its 40 compute units, at 2.8 GHz.
ALL_CHIPS = CHIPS | {"8050S": replace(CHIPS["8060S"], name="8050S", compute_units=32, ghz=2.8)}


@dataclass(frozen=True, slots=True)
class Seen:
    """What somebody published: tokens a second of a prompt of 512 tokens, or of decoding one stream."""

    chip: str
    model: str
    is_prompt: bool
    per_s: float
    source: str
    note: str = ""


def _both(chip: str, model: str, prompt: float, decoded: float, source: str, note: str = "") -> tuple[Seen, Seen]:
    return Seen(chip, model, True, prompt, source, note), Seen(chip, model, False, decoded, source, note)


SEEN = (
    *_both("780M", "qwen2.5-3b:Q4_K_M", 693, 35.4, OPEN_XDNA),
    *_both("780M", "qwen2.5-3b:Q4_K_M", 677, 34.54, OPEN_XDNA, "another run"),
    *_both("780M", "qwen2.5-7b:Q4_K_M", SEEN_READ_PER_S, SEEN_DECODED_PER_S, OPEN_XDNA),
    *_both("780M", "qwen2.5-7b:Q4_K_M", 321, 16.5, OPEN_XDNA, "another run"),
    *_both("780M", "qwen2.5-14b:Q3_K_M", 156, 9.9, OPEN_XDNA, "Q3_K, which mix is not said"),
    Seen("780M", "gemma4-26b-a4b:Q4_K_M", False, 16.5, OPEN_XDNA, "by ollama"),
    *_both("780M", "qwen3.5-9b:Q4_K_M", 250.5, 14.42, TILES, "Qwen 3.8"),
    Seen("780M", "qwen3.5-9b:Q4_K_M", True, 404.4, TILES, "Qwen 3.8, with half of a tile's rows"),
    *_both("780M", "qwen3.5-27b:Q4_K_M", 72.4, 4.73, TILES, "Qwen 3.8 in UD-Q4_K_M"),
    Seen("780M", "qwen3.5-27b:Q4_K_M", True, 117.5, TILES, "Qwen 3.8 in UD-Q4_K_M, with half of a tile's rows"),
    Seen("780M", "qwen3.5-27b:Q4_K_M", False, 4.1, WINDOWS, "Qwen 3.8 in 4 bits, on Windows"),
    *_both("8050S", "llama-8b:Q4_K_M", 833, 41.6, HOMELAB),
    *_both("8060S", "qwen3.5-35b-a3b:Q4_K_M", 1080, 64.85, MIXTURES),
    *_both("8060S", "qwen3.5-35b-a3b:Q4_K_M", 657, 64.55, MIXTURES, "a later build"),
    *_both("8060S", "qwen3-30b-a3b:Q4_K_M", 1342, 87.11, MIXTURES, "UD-Q4_K_XL"),
    *_both("8060S", "qwen3-30b-a3b:Q4_K_M", 910, 83.75, MIXTURES, "UD-Q4_K_XL, a later build"),
    *_both("8060S", "qwen3.5-27b:Q5_K", 294.5, 10.76, LARGE_TILE, "Qwen 3.8 in UD-Q5_K_XL"),
    Seen("8060S", "qwen3.5-27b:Q5_K", True, 517.0, LARGE_TILE, "Qwen 3.8 in UD-Q5_K_XL, with twice the columns"),
    Seen("8060S", "qwen3-next-80b-a3b:Q4_K_M", True, 507.0, AMDVLK, "Qwen3 Coder Next, by RADV"),
    *_both("7900XTX", "gemma4-26b-a4b:Q4_0", 3410.5, 135.6, INT8_MATRICES, "without what is proposed there"),
    *_both("7900XTX", "qwen3.5-27b:IQ3_XXS", 962.5, 53.5, ISSUE, "Qwen 3.8"),
)


@dataclass(frozen=True, slots=True)
class Held:
    """A figure beside the estimate."""

    seen: Seen
    at_most: float
    share: float
    is_dense: bool

    @property
    def ratio(self) -> float:
        """What was seen of what the estimate says at most."""
        return self.seen.per_s / self.at_most

    @property
    def is_integrated(self) -> bool:
        """Whether the chip shares the host's memory."""
        return ALL_CHIPS[self.seen.chip].device_type is DeviceType.INTEGRATED


def held(compiler: Compiler, seen: Seen) -> Held:
    """Hold a figure against the estimate."""
    one = Estimator(compiler, ALL_CHIPS[seen.chip], Model.find(seen.model))
    tokens, context = (PROMPT, PROMPT) if seen.is_prompt else (1, DECODED)
    parts = list(one.parts(tokens, context, is_prompt=seen.is_prompt))
    wanted_us = tokens * 1e6 / seen.per_s - len(parts) * DISPATCH_US
    memory_share, code_share = (sum(shares) / 2 for shares in shares_of(one.model))  # of what does not bound the step
    low, high = 0.01, 2.0
    for _ in range(30):
        share = (low + high) / 2
        shares = (memory_share, share) if seen.is_prompt else (share, code_share)
        low, high = (share, high) if step_us(parts, *shares) > wanted_us else (low, share)
    return Held(seen, tokens * 1e6 / step_us(parts, 1.0, 1.0), high, not one.model.has_experts)


def table(rows: list[Held]) -> list[str]:
    """Return the figures as a table in Markdown."""
    lines = [
        "| chip | model | step | at most, tok/s | seen | ratio | share | source, and what was other |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        seen, step = row.seen, f"prompt of {PROMPT}" if row.seen.is_prompt else "1 stream"
        where = ": ".join(text for text in (seen.source, seen.note) if text)
        most = f"{row.at_most:,.0f}" if row.at_most >= 100 else f"{row.at_most:.1f}"
        lines.append(
            f"| {seen.chip} | {seen.model} | {step} | {most} | {seen.per_s:g} | {row.ratio:.2f} | {row.share:.2f}"
            f" | {where} |"
        )
    return lines


def ranges(rows: list[Held]) -> list[str]:
    """Return the least and the largest share, and ratio, of each kind of step, on each kind of chip."""
    lines = []
    for is_prompt, is_dense, is_integrated in product((True, False), repeat=3):
        kind = (is_prompt, is_dense, is_integrated)
        found = [row for row in rows if (row.seen.is_prompt, row.is_dense, row.is_integrated) == kind]
        if found:
            words = (
                "prompts" if is_prompt else "one stream",
                "dense models" if is_dense else "mixtures of experts",
                "integrated chips" if is_integrated else "others",
            )
            shares, ratios = ([getattr(row, name) for row in found] for name in ("share", "ratio"))
            lines.append(
                f"{', '.join(words)}: shares of {min(shares):.2f} to {max(shares):.2f},"
                f" ratios of {min(ratios):.2f} to {max(ratios):.2f}"
            )
    return lines


def main() -> None:
    """Estimate, hold, and print."""
    parser = argparse.ArgumentParser(description="The estimate for RDNA3 beside what users of llama.cpp published.")
    known = sorted({seen.model for seen in SEEN})
    parser.add_argument("--models", nargs="+", choices=known, default=known, metavar="MODEL", help=", ".join(known))
    parser.add_argument("--json", type=out_file, metavar="FILE")
    options = parser.parse_args()
    choose_driver()
    with Instance.create() as instance, closing(Compiler(instance)) as compiler:
        driver = f"{compiler.info.driver_name} {compiler.info.driver_info}"
        has_matrices = MATRIX_FEATURE in compiler.info.features
        print(f"{driver}: an estimate by its compiler, beside figures that others published", flush=True)
        rows = [held(compiler, seen) for seen in SEEN if seen.model in options.models]
    print("\n".join(table(rows)))
    print("\n".join(ranges(rows)))
    if options.json is not None:
        figures = [{**asdict(row), "ratio": row.ratio, "is_integrated": row.is_integrated} for row in rows]
        options.json.write_text(
            json.dumps({"driver": driver, "has_matrices": has_matrices, "figures": figures}, indent=1)
        )


if __name__ == "__main__":
    run_script(main)
