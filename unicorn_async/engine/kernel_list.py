"""The kernels that first requests need, for compiling them while the weights are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.engine.buckets import bucket_sizes
from unicorn_async.engine.conversion import conversion_kernels
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.models import projection
from unicorn_async.models.weights import head_name
from unicorn_async.ops import embedding, embedding_quant, norm, rotary, sampling
from unicorn_async.ops.sample_rows import SamplingPath
from unicorn_async.tensor import QuantTensor, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unicorn_async.config import EngineConfig, ModelConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.loader.plan import LoadPlan
    from unicorn_async.ops.attention import GpuAttention
    from unicorn_async.ops.kv_cache import AttentionShape
    from unicorn_async.tensor import Weight

_FIRST_STEPS = (32, 1)  # tokens: a short prompt, then decoding


def kernel_requests(
    info: DeviceInfo,
    model: ModelConfig,
    shape: AttentionShape,
    attention: GpuAttention,
    matrices: Mapping[str, Weight],
    plan: LoadPlan,
    options: EngineConfig,
) -> tuple[KernelRequest, ...]:
    """Return what to compile, in the order of need: the load, a short prompt and decoding, then longer prompts."""
    head = matrices[head_name(model)]
    others = tuple(size for size in bucket_sizes(options.max_num_batched_tokens) if size not in _FIRST_STEPS)
    requests = [
        *conversion_kernels(plan),
        *_embedding(matrices["embed"]),
        *norm.kernels_for(info, post_norms=model.post_norms, plus_one=model.norm_plus_one),
        *_linears(info, model, matrices, head, _FIRST_STEPS),
        *rotary.kernels_for(info, shape, qk_norm=model.qk_norm, plus_one=model.norm_plus_one),
        *attention.kernels_for(),
        *_plain(sampling.kernels_for(info, SamplingPath.GREEDY)),
        *_plain(sampling.kernels_for(info, SamplingPath.FULL)),
        *_linears(info, model, matrices, head, others),
    ]
    return tuple({_key(request): request for request in requests}.values())


def _linears(
    info: DeviceInfo, model: ModelConfig, matrices: Mapping[str, Weight], head: Weight, sizes: tuple[int, ...]
) -> Iterable[KernelRequest]:
    for part in ("qkv", "o", "gate_up", "down"):
        has_bias = {"qkv": model.qkv_bias, "o": model.output_bias}.get(part, False)
        activation = model.activation if part == "gate_up" else None
        weight = matrices[f"layers.0.{part}"]
        yield from projection.kernels_for(info, weight, num_tokens=sizes, has_bias=has_bias, activation=activation)
    yield from projection.kernels_for(info, head, num_tokens=(1,), has_soft_cap=model.logit_soft_cap > 0.0)


def _embedding(table: Weight) -> Iterable[KernelRequest]:
    if isinstance(table, Tensor):
        return embedding.kernels_for(table.dtype)
    assert isinstance(table, QuantTensor), "the embeddings are one tensor"
    return embedding_quant.kernels_for(table.format)


def _plain(kernels: Iterable[tuple[str, Mapping[str, int | float | bool]]]) -> Iterable[KernelRequest]:
    return (KernelRequest(name, constants) for name, constants in kernels)


def _key(request: KernelRequest) -> tuple[str, tuple[tuple[str, int | float | bool], ...], int | None]:
    return request.name, tuple(sorted(request.constants.items())), request.subgroup_size
