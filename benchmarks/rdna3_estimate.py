#!/usr/bin/env python3
"""How fast an RDNA3 chip would run a model's steps, by memory, by its kernels' instructions, and by dispatches.

    rdna3_estimate.py MODEL... [--chips 780M 8060S] [--streams 1 8 32] [--prompt 512] [--context 256]
                      [--memory-share LEAST MOST] [--code-share LEAST MOST] [--json FILE]

An estimate and no measurement, made without the chip: models, chips and the compiler are those of rdna3.py. A step is
the sum of its dispatches. Each of them takes what reading and writing its weights, activations, keys and values takes
the memory, or what its instructions take by their rates (rdna3_code.py), whichever is longer: "at most" is the rate of
tokens if all of them reach that. Tokens choose experts as if they drew them (routing.py). The columns before that are
what all of a step's bytes, all of its instructions and all of its dispatches would take alone, at DISPATCH_US each, for
starting and for waiting for the one before it: a guess, which nobody has measured there. "Likely" is a range: a step
whose memory gives the least, and the most, of `--memory-share` of its rate and whose code runs at such a
`--code-share` of its instructions' rate, its dispatches beside that. The shares that are there by default are the
least and the most that llama.cpp reached on integrated chips, by what its users published (rdna3_seen.py), those of
mixtures of experts for mixtures; whether our kernels reach as much, or more, there nobody knows.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING

from command_line import out_file, positive, run_script
from rdna3 import CHIPS, Chip, choose_driver, code_us, product_of
from rdna3_code import hottest_loop
from rdna3_driver import Compiler
from rdna3_models import Model
from rdna3_work import (
    EXPERT_PRODUCTS,
    HALF,
    SINGLE,
    Work,
    attention_work,
    expert_work,
    recurrent_work,
)
from routing import Routing

from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, KVDType
from unicorn_async.gpu.instance import Instance
from unicorn_async.hybrid.choice import fit_options
from unicorn_async.memory.plan import attention_shape
from unicorn_async.step.dry_run import DryRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unicorn_async.gpu.listing import ListedDispatch

ROUTES = ("route", "router")  # the choice of experts, alone and behind its product
DISPATCH_US = 5.0  # taken, not measured
# At least and at most, by rdna3_seen.py, of integrated chips: of models without experts, and of mixtures.
MEMORY_SHARES, MIXTURE_MEMORY_SHARES = (0.75, 0.87), (0.51, 0.89)
CODE_SHARES, MIXTURE_CODE_SHARES = (0.26, 0.58), (0.11, 0.25)


@dataclass(frozen=True, slots=True)
class Part:
    """A dispatch: what its bytes and its instructions take, in microseconds."""

    memory_us: float
    code_us: float

    def at(self, memory_share: float, code_share: float) -> float:
        """Microseconds where memory and code reach such shares of their rates."""
        return max(self.memory_us / memory_share, self.code_us / code_share)


@dataclass(frozen=True, slots=True)
class Step:
    """A step's estimate in tokens a second; `bound_by_memory` is the share of its time at most that is memory's.

    Milliseconds are of all of its bytes, and of all of its instructions, at their full rates.
    """

    model: str
    chip: str
    step: str
    memory_ms: float
    code_ms: float
    dispatches: int
    at_most: float
    likely: tuple[float, float]
    bound_by_memory: float

    @property
    def dispatches_ms(self) -> float:
        """What its dispatches take beside their work."""
        return self.dispatches * DISPATCH_US / 1e3


@dataclass(frozen=True, slots=True)
class Estimator:
    """One model on one chip."""

    compiler: Compiler
    chip: Chip
    model: Model

    def step(
        self,
        tokens: int,
        context: int,
        memory_shares: Sequence[float],
        code_shares: Sequence[float],
        *,
        is_prompt: bool,
    ) -> Step:
        """Estimate a prompt, or a step in which so many streams decode behind so many tokens each."""
        parts = list(self.parts(tokens, context, is_prompt=is_prompt))
        best = step_us(parts, 1.0, 1.0)
        least, most = (
            tokens * 1e6 / (step_us(parts, *shares) + len(parts) * DISPATCH_US)
            for shares in zip(memory_shares, code_shares, strict=True)
        )
        memory = sum(part.memory_us for part in parts if part.memory_us >= part.code_us)
        return Step(
            model=self.model.name,
            chip=self.chip.name,
            step=f"prompt of {tokens}" if is_prompt else f"{tokens} stream{'s' * (tokens > 1)}",
            memory_ms=sum(part.memory_us for part in parts) / 1e3,
            code_ms=sum(part.code_us for part in parts) / 1e3,
            dispatches=len(parts),
            at_most=tokens * 1e6 / best,
            likely=(least, most),
            bound_by_memory=memory / best,
        )

    def parts(self, tokens: int, context: int, *, is_prompt: bool) -> Iterator[Part]:
        """Yield what the dispatches of a step take."""
        spec = self.model.spec
        config = fit_options(spec, EngineConfig(kv_dtype=KVDType.F16))
        info = self.chip.describe(self.compiler.info)
        run = DryRun(info, spec, attention_shape(spec, config), self.model.plan)
        others = ("attention_decode",) if is_prompt else ("attention_prefill", "delta_chunk", "ssm_chunk")
        of_dispatch = cache(lambda key: self._part(listed[key], key[-1], tokens, context, is_prompt=is_prompt))
        listed: dict[object, ListedDispatch] = {}
        routing = None
        for dispatches in (*run.layers(tokens), run.head(1 if is_prompt else tokens)):
            for dispatch in dispatches:
                constants = dispatch.request.constants
                if dispatch.request.name in ROUTES:
                    routing = Routing(int(constants["EXPERTS"]), int(constants["K"]))
                if not dispatch.request.name.startswith((*others, "touch_pages")):
                    given = tuple(sorted(constants.items()))
                    sizes = dispatch.fields.get("window"), dispatch.fields.get("n"), dispatch.fields.get("blocks")
                    key = dispatch.request.name, given, sizes, product_of(dispatch), routing
                    listed[key] = dispatch
                    yield of_dispatch(key)

    def _part(
        self, dispatch: ListedDispatch, routing: Routing | None, tokens: int, context: int, *, is_prompt: bool
    ) -> Part:
        product, name, fields = product_of(dispatch), dispatch.request.name, dispatch.fields
        if product is not None:
            num_bytes = product.weight_bytes + product.tokens * (product.k * HALF + product.num_outputs * SINGLE)
            return Part(
                self._memory_us(num_bytes),
                code_us(self.chip, self.compiler.compile(dispatch.request), product, dispatch.request) or 0.0,
            )
        if routing is not None and name in EXPERT_PRODUCTS:
            return self._worked(dispatch, expert_work(dispatch, routing, tokens))
        if name == "router":
            num_bytes = int(dispatch.request.constants["EXPERTS"]) * int(fields["columns"]) * 4 * SINGLE
            return Part(self._memory_us(num_bytes), 0.0)
        if name.startswith(("delta", "ssm")):
            return self._worked(dispatch, recurrent_work(dispatch, tokens, is_prompt=is_prompt))
        if name.startswith("attention"):
            return self._worked(dispatch, attention_work(dispatch, tokens, context))
        return Part(self._memory_us(tokens * self._row_bytes(dispatch)), 0.0)

    def _worked(self, dispatch: ListedDispatch, work: Work) -> Part:
        """Multiply-adds by the main loop."""
        loop = hottest_loop(self.compiler.compile(dispatch.request).code) if work.macs else None
        cycles = work.macs / loop.macs * loop.cycles() if loop is not None else 0.0
        return Part(self._memory_us(work.num_bytes), cycles / self.chip.compute_units / self.chip.ghz / 1e3)

    def _row_bytes(self, dispatch: ListedDispatch) -> int:
        """Of a token in what is no product: what is read and written once."""
        spec = self.model.spec
        name, fields = dispatch.request.name, dispatch.fields
        if name.startswith("rms_norm"):  # the residual stream comes and goes, a branch comes, a product's input goes
            return int(fields["columns"]) * 4 * (3 * SINGLE + HALF)
        if name.startswith("gated"):
            return int(fields["columns"]) * 4 * (2 * SINGLE + HALF)
        if name.startswith(("rope", "qk_norm", "kv_append")):
            heads = spec.attention.num_heads + 2 * spec.attention.num_kv_heads
            return heads * spec.attention.head_dim * 2 * SINGLE
        return spec.hidden_size * (SINGLE + HALF)

    def _memory_us(self, num_bytes: float) -> float:
        return num_bytes / self.chip.gb_per_s / 1e3


def step_us(parts: Sequence[Part], memory_share: float, code_share: float) -> float:
    """Return what dispatches take at such shares of the rates, without what each takes beside its work."""
    return sum(part.at(memory_share, code_share) for part in parts)


def shares_of(model: Model) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the least and the most that others reached of memory's rate, and of instructions', with such models."""
    if model.has_experts:
        return MIXTURE_MEMORY_SHARES, MIXTURE_CODE_SHARES
    return MEMORY_SHARES, CODE_SHARES


def table(steps: list[Step]) -> list[str]:
    """Return the steps as a table in Markdown."""
    lines = [
        "| model | chip | step | memory, ms | instructions, ms | dispatches, ms | at most, tok/s | likely |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for step in steps:
        least, most = map(_rate, step.likely)
        times = " | ".join(_rate(ms) for ms in (step.memory_ms, step.code_ms))
        lines.append(
            f"| {step.model} | {step.chip} | {step.step} | {times} | {step.dispatches}: {step.dispatches_ms:.1f}"
            f" | {_rate(step.at_most)} | {least} to {most} |"
        )
    return lines


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def main() -> None:
    """Estimate, and print."""
    parser = argparse.ArgumentParser(description="How fast an RDNA3 chip would run a model, without the chip.")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="as for rdna3.py: gemma3-27b:Q4_0")
    parser.add_argument("--chips", nargs="+", choices=list(CHIPS), default=["780M", "8060S"])
    parser.add_argument("--streams", nargs="+", type=count, default=[1, 2, 4, 8, 16, 32, 64], metavar="N")
    parser.add_argument("--prompt", type=count, default=512, metavar="N")
    parser.add_argument("--context", type=count, default=256, metavar="N", help="of each stream")
    for name in ("--memory-share", "--code-share"):
        parser.add_argument(name, type=positive, nargs=2, metavar=("LEAST", "MOST"))
    parser.add_argument("--json", type=out_file, metavar="FILE")
    options = parser.parse_args()
    models = [Model.find(name) for name in options.models]
    choose_driver()
    steps = []
    with Instance.create() as instance, closing(Compiler(instance)) as compiler:
        driver = f"{compiler.info.driver_name} {compiler.info.driver_info}"
        print(f"{driver}: an estimate by its compiler, and no measurement", flush=True)
        for model in models:
            for name in options.chips:
                one, known = Estimator(compiler, CHIPS[name], model), shares_of(model)
                shares = options.memory_share or known[0], options.code_share or known[1]
                steps.append(one.step(options.prompt, options.prompt, *shares, is_prompt=True))
                steps += [one.step(streams, options.context, *shares, is_prompt=False) for streams in options.streams]
    print("\n".join(table(steps)))
    if options.json is not None:
        options.json.write_text(json.dumps({"driver": driver, "steps": [asdict(step) for step in steps]}, indent=1))


if __name__ == "__main__":
    run_script(main)
