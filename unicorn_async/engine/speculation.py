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
        UnsupportedModelError: proposals are asked for, and the model keeps what can't be taken back.
    """
    if options.speculation is SpeculationMode.OFF or not model.has_fixed_state:
        is_off = options.speculation is SpeculationMode.OFF or options.attends_elsewhere
        return replace(options, speculation=SpeculationMode.OFF if is_off else SpeculationMode.LOOKUP)
    if options.speculation is not SpeculationMode.AUTO:
        raise UnsupportedModelError(
            f"speculation {options.speculation.value}: a layer of {model.architecture} keeps a state of all tokens"
            " before, from which wrong ones can't be taken back"
        )
    return replace(options, speculation=SpeculationMode.OFF)


def make_speculation(options: EngineConfig) -> Speculation | None:
    """Return what proposes tokens as the options of a model say, if anything does."""
    from unicorn_async.scheduler.speculation import Speculation
    from unicorn_async.scheduler.step_costs import StepCosts
    from unicorn_async.step.buckets import bucket_sizes

    if options.speculation is SpeculationMode.OFF:
        return None
    return Speculation(StepCosts(bucket_sizes(options.max_num_batched_tokens)), options.max_sampled)
