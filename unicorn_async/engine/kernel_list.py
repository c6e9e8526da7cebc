"""The kernels that first requests need, for compiling them while the weights are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.engine.buckets import bucket_sizes
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.models.weights import head_name
from unicorn_async.ops import convert, embedding, gated, linear, norm, rotary, sampling
from unicorn_async.ops.sample_rows import SamplingPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unicorn_async.config import EngineConfig, ModelConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.loader.plan import LoadPlan
    from unicorn_async.ops.attention import GpuAttention
    from unicorn_async.ops.kv_cache import AttentionShape
    from unicorn_async.tensor import Tensor

_FIRST_STEPS = (32, 1)  # tokens: a short prompt, then decoding


def kernel_requests(
    info: DeviceInfo,
    model: ModelConfig,
    shape: AttentionShape,
    attention: GpuAttention,
    weights: Mapping[str, Tensor],
    plan: LoadPlan,
    options: EngineConfig,
) -> tuple[KernelRequest, ...]:
    """Return what to compile, in the order of need: the load, a short prompt and decoding, then longer prompts."""
    conversions = {(chunk.source_dtype, chunk.dest_dtype) for chunk in plan.chunks}
    rows = weights[head_name(model)]
    others = tuple(size for size in bucket_sizes(options.max_num_batched_tokens) if size not in _FIRST_STEPS)
    requests = [
        *(KernelRequest(*convert.kernel_for(*pair)) for pair in conversions if pair[0] is not pair[1]),
        *embedding.kernels_for(weights["embed"].dtype),
        *norm.kernels_for(info, post_norms=model.post_norms, plus_one=model.norm_plus_one),
        *_linears(info, model, weights, rows, _FIRST_STEPS),
        *rotary.kernels_for(info, shape, qk_norm=model.qk_norm, plus_one=model.norm_plus_one),
        *attention.kernels_for(),
        *gated.kernels_for(model.activation),
        *_plain(sampling.kernels_for(info, SamplingPath.GREEDY)),
        *_plain(sampling.kernels_for(info, SamplingPath.FULL)),
        *_linears(info, model, weights, rows, others),
    ]
    return tuple({_key(request): request for request in requests}.values())


def _linears(
    info: DeviceInfo, model: ModelConfig, weights: Mapping[str, Tensor], head: Tensor, sizes: tuple[int, ...]
) -> Iterable[KernelRequest]:
    for part in ("qkv", "o", "gate_up", "down"):
        weight = weights[f"layers.0.{part}"]
        has_bias = part == "qkv" and model.qkv_bias
        yield from linear.kernels_for(
            info, num_tokens=sizes, n=weight.shape[0], dtype=weight.dtype, has_bias=has_bias
        )
    capped = model.logit_soft_cap > 0.0
    yield from linear.kernels_for(info, num_tokens=(1,), n=head.shape[0], dtype=head.dtype, has_soft_cap=capped)


def _plain(kernels: Iterable[tuple[str, Mapping[str, int | float | bool]]]) -> Iterable[KernelRequest]:
    return (KernelRequest(name, constants) for name, constants in kernels)


def _key(request: KernelRequest) -> tuple[str, tuple[tuple[str, int | float | bool], ...], int | None]:
    return request.name, tuple(sorted(request.constants.items())), request.subgroup_size
