"""The device that is asked for to attend, where that is not the one that runs the model.

What an NPU needs is imported where it is asked for: other starts need not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.config import AttentionKind
from unicorn_async.errors import MissingFeatureError, UnsupportedModelError
from unicorn_async.gpu.choice import device_candidates
from unicorn_async.models.blocks.attention import Attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.memory.far_plan import FarPlan
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.npu.choice import NpuChoice


def fit_options(model: ModelSpec, options: EngineConfig) -> EngineConfig:
    """Return the options with a block size that what attends can take.

    Raises:
        UnsupportedModelError: it can't take the model's heads, or a layer has no attention, a gated one, or sinks.
    """
    other = next((number for number, layer in enumerate(model.layers) if not layer.attends), None)
    if options.attends_elsewhere and other is not None:
        raise UnsupportedModelError(
            f"--attention {options.attention.kind.value}: layer {other} of {model.architecture} has no attention; on"
            " another device than the model's only models attend of which every layer does"
        )
    if options.attends_elsewhere and model.has_latents:
        raise UnsupportedModelError(
            f"--attention {options.attention.kind.value}: {model.architecture} attends to latents, which only the"
            " model's own device does"
        )
    attentions = [block for block in model.unique_blocks if isinstance(block, Attention)]
    if options.attends_elsewhere and any(attention.gates_results for attention in attentions):
        raise UnsupportedModelError(
            f"--attention {options.attention.kind.value}: what {model.architecture} attends to is gated, which only the"
            " model's own device does"
        )
    if options.attends_elsewhere and any(attention.has_sinks for attention in attentions):
        raise UnsupportedModelError(
            f"--attention {options.attention.kind.value}: the heads of {model.architecture} have attention sinks, which"
            " only the model's own device takes"
        )
    if options.attends_elsewhere and model.shares_keys:
        raise UnsupportedModelError(
            f"--attention {options.attention.kind.value}: layers of {model.architecture} attend to keys and values of"
            " others, which only the model's own device does"
        )
    heads = sorted({(state.num_kv_heads, state.head_dim) for state in model.paged_states})
    if options.attends_elsewhere and len(heads) > 1:
        raise UnsupportedModelError(
            f"--attention {options.attention.kind.value}: layers of {model.architecture} have different heads for keys"
            f" and values, by (number, size): {heads}; only the model's own device takes these together"
        )
    assert options.attention.kind is not AttentionKind.AUTO, "auto has become one of the others"
    if options.attention.kind is not AttentionKind.NPU:
        return options
    from unicorn_async.npu.choice import fit_npu_options

    return fit_npu_options(model, options)


def _npu_choice(model: ModelSpec, options: EngineConfig) -> NpuChoice | None:
    if options.attention.kind is not AttentionKind.NPU:
        return None
    from unicorn_async.npu.choice import NpuChoice

    return NpuChoice.find(model, options)


class FarDevice:
    """What is asked for to attend, among the devices of this machine."""

    def __init__(self, model: ModelSpec, options: EngineConfig, devices: Sequence[DeviceInfo]) -> None:
        """Find the device.

        Raises:
            ConfigError: there is no such device. MissingFeatureError: it can't be used.
            NpuUnavailableError, NpuBuildError, UnsupportedModelError: as `NpuChoice.find`.
        """
        self._model = model
        self._options = options = fit_options(model, options)
        self._vulkan = _far_device(options, devices)
        self._npu = _npu_choice(model, options)

    def near(self, candidates: Sequence[DeviceInfo]) -> tuple[DeviceInfo, ...]:
        """Return those of the candidates that may run the model."""
        return _near_devices(candidates, self._vulkan)

    def plan(self, near: DeviceInfo, left: int, *, host_bytes: int | None = None) -> FarPlan | None:
        """Plan the cache beside a model on `near`; None where that attends itself.

        Of that device's memory `left` bytes are left. `host_bytes` is the host's free memory, None = as it is now.

        Raises:
            ConfigError, OutOfMemoryError: as `plan_kv_cache`.
        """
        if self._npu is not None:
            from unicorn_async.hybrid.npu_plan import plan_npu

            return plan_npu(self._model, self._options, near, self._npu, left, host_bytes=host_bytes)
        if self._vulkan is not None:
            from unicorn_async.hybrid.vulkan_plan import plan_vulkan

            return plan_vulkan(self._model, self._options, near, self._vulkan, left, host_bytes=host_bytes)
        return None


def _far_device(options: EngineConfig, devices: Sequence[DeviceInfo]) -> DeviceInfo | None:
    """Return the Vulkan device that is asked for to attend; None where none is.

    Raises:
        ConfigError: there is no such device. MissingFeatureError: it can't be used.
    """
    if options.attention.kind is not AttentionKind.VULKAN:
        return None
    (info,) = device_candidates(devices, options.attention.device)
    if info.missing:
        raise MissingFeatureError(f"attention on {info.name}: it lacks {', '.join(info.missing)}")
    return info


def _near_devices(candidates: Sequence[DeviceInfo], far: DeviceInfo | None) -> tuple[DeviceInfo, ...]:
    """Return the devices that may run the model: not the one that attends, unless there is no other."""
    others = tuple(info for info in candidates if far is None or info.index != far.index)
    return others or tuple(candidates)
