"""Whether a model's steps can check proposed tokens, and what decides how many."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.config import SpeculationMode
from unicorn_async.errors import UnsupportedModelError

if TYPE_CHECKING:
    from unicorn_async.config import EngineConfig
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.scheduler.speculation import Speculation


def fit_speculation(model: ModelSpec, options: EngineConfig) -> EngineConfig:
    """Return the options with who proposes tokens to a model, in place of `auto`.

    Raises:
        UnsupportedModelError: a draft model is to propose, and another device attends.
    """
    if options.draft is not None and options.attends_elsewhere:
        raise UnsupportedModelError(
            f"draft {options.draft}: nothing can be proposed to {model.architecture} with attention {options.attention}"
        )
    is_off = options.speculation is SpeculationMode.OFF or options.attends_elsewhere
    return replace(options, speculation=SpeculationMode.OFF if is_off else SpeculationMode.LOOKUP)


def make_speculation(options: EngineConfig, *, predicts: bool) -> Speculation | None:
    """Return what proposes tokens as the options of a model say, if anything does; one that `predicts` does itself."""
    from unicorn_async.scheduler.speculation import Speculation
    from unicorn_async.scheduler.step_costs import StepCosts
    from unicorn_async.step.buckets import bucket_sizes

    if options.speculation is SpeculationMode.OFF:
        return None
    return Speculation(StepCosts(bucket_sizes(options.max_num_batched_tokens)), options.max_sampled, predicts=predicts)
