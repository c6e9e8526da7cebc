"""What `--attention auto` becomes for a model on this machine, and the times of steps that later starts go by.

Only who asks for `auto`, or for the NPU, waits for any of this.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from unicorn_async.background import run_to_end
from unicorn_async.config import AttentionKind, AttentionTarget
from unicorn_async.engine.speculation import fit_speculation
from unicorn_async.engine.user_folders import step_times_directory
from unicorn_async.errors import ConfigError, NpuError, UnsupportedModelError
from unicorn_async.hybrid.choice import fit_options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.files import ModelFiles
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.hybrid.cost_model import Weights
    from unicorn_async.hybrid.step_times import StepTimes, StepTimesFile
    from unicorn_async.hybrid.way_choice import AttentionChoice
    from unicorn_async.npu.choice import NpuChoice

_EXPERTS = "experts_"  # in the names of destinations that have weights of all experts

_log = logging.getLogger(__name__)


def settle_attention(
    files: ModelFiles, options: EngineConfig, candidates: Sequence[DeviceInfo]
) -> tuple[EngineConfig, AttentionChoice | None]:
    """Return options that fit the model, in which `auto` is one of the others, and why; it blocks on the disk.

    With several devices that may run the model, the NPU is taken where it pays beside each of them.

    Raises:
        ConfigError, UnsupportedModelError: what was asked for can't be.
    """
    choice = None
    if options.attention.kind is AttentionKind.AUTO:
        choice = _choose(files, options, candidates)
        options = replace(options, attention=AttentionTarget(choice.kind))
    return fit_speculation(files.config, fit_options(files.config, options)), choice


def _choose(files: ModelFiles, options: EngineConfig, candidates: Sequence[DeviceInfo]) -> AttentionChoice:
    from unicorn_async.hybrid.way_choice import AttentionChoice
    from unicorn_async.npu.choice import NpuChoice

    try:
        fitted = fit_options(files.config, replace(options, attention=AttentionTarget(AttentionKind.NPU)))
        npu = NpuChoice.find(files.config, fitted)
    except (ConfigError, NpuError, UnsupportedModelError) as exc:
        return AttentionChoice(AttentionKind.GPU, f"the NPU can't be taken: {exc}")
    choices = [_choose_beside(files, options, info, npu) for info in candidates]
    return next((choice for choice in choices if choice.kind is AttentionKind.GPU), choices[-1])


def _choose_beside(files: ModelFiles, options: EngineConfig, info: DeviceInfo, npu: NpuChoice) -> AttentionChoice:
    from unicorn_async.hybrid.cost_model import StepWork
    from unicorn_async.hybrid.figures import gpu_figures, npu_figures
    from unicorn_async.hybrid.step_times import StepTimes
    from unicorn_async.hybrid.way_choice import assumed_classes, choose_way

    chip, kernels, weights = npu.heads.layout.chip, npu.kernels, weights_of(files)
    times = StepTimes()
    for place, file in step_times_files(files, info, chip.name, kernels.identity).items():
        try:
            times = times.joined(file.read().at(place))
        except ConfigError as exc:
            _log.warning("%s; it is replaced when this engine ends", exc)
    return choose_way(
        lambda step: StepWork.of(files.config, weights, npu.heads, step, kernels.tasks_per_run),
        assumed_classes(files.config, options),
        times,
        gpu_figures(info, chip),
        npu_figures(chip, kernels.rates, kernels.build.products),
    )


def weights_of(files: ModelFiles) -> Weights:
    """Count what steps read and multiply by: matrices without embeddings, experts by themselves."""
    from unicorn_async.hybrid.cost_model import Weights
    from unicorn_async.models.blocks.experts import Experts

    tied = bool(files.config.tied_tensors)
    matrices = [dest for dest in files.plan.destinations if len(dest.shape) == 2 and (dest.layer >= 0 or tied)]
    own, experts = ([dest for dest in matrices if (_EXPERTS in dest.name) is is_one] for is_one in (False, True))
    shares = [
        block.routing.num_chosen / block.routing.num_experts
        for block in files.config.unique_blocks
        if isinstance(block, Experts)
    ]
    return Weights(
        sum(dest.nbytes for dest in own),
        sum(prod(dest.shape) for dest in own),
        sum(dest.nbytes for dest in experts),
        sum(prod(dest.shape) for dest in experts),
        max(shares, default=1.0),
    )


def step_times_files(
    files: ModelFiles, info: DeviceInfo, chip: str, kernels: tuple[object, ...] | None
) -> dict[AttentionKind, StepTimesFile]:
    """Return where times of a model's steps are kept, by their attention's place, on a GPU with its driver.

    Beside an NPU; those with attention on it are of its `kernels`, and have no place without any.
    """
    from unicorn_async.hybrid.step_times import StepTimesFile

    device = (info.name, info.device_uuid, info.driver_name, info.driver_version)
    shared = (repr(files.config), files.plan.dest_bytes, device, chip)
    found = {AttentionKind.GPU: StepTimesFile(step_times_directory(), *shared)}
    if kernels is not None:
        found[AttentionKind.NPU] = StepTimesFile(step_times_directory(), *shared, *kernels)
    return found


async def keep_step_times(
    files: ModelFiles, asked: EngineConfig, info: DeviceInfo, stack: AsyncExitStack
) -> StepTimes | None:
    """Return what notes the times of steps, for `stack` to keep; None where nobody goes by them.

    That is where neither `auto` nor the NPU was asked for, or there is no NPU.
    """
    if asked.attention.kind not in (AttentionKind.AUTO, AttentionKind.NPU):
        return None
    return await asyncio.to_thread(_begin_times, files, info, stack)


def _begin_times(files: ModelFiles, info: DeviceInfo, stack: AsyncExitStack) -> StepTimes | None:
    from unicorn_async.hybrid.step_times import StepTimes
    from unicorn_async.npu.choice import this_chip, this_identity

    chip = this_chip()
    if chip is None:
        return None
    kept, times = step_times_files(files, info, chip.name, this_identity(files.config)), StepTimes()

    def keep() -> None:
        for place, file in kept.items():
            found = times.at(place)
            if found.is_empty:
                continue
            try:
                file.add(found)
            except ConfigError as exc:
                _log.warning("%s; the next start with --attention auto goes without these times", exc)

    stack.push_async_callback(run_to_end, keep)
    return times
