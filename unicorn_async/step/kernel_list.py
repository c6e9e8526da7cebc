"""The kernels that first requests need, for compiling them while the weights are loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.loader.conversion import conversion_kernels
from unicorn_async.memory.plan import max_logit_rows
from unicorn_async.models.weights import head_name
from unicorn_async.ops import embedding, gated, linear, norm, page_touch, rotary, sampling
from unicorn_async.ops.attention_plan import MAX_ROTATING_TOKENS
from unicorn_async.ops.checksum import checksum_kernel
from unicorn_async.ops.linear import Epilogue
from unicorn_async.ops.rows import RowForm
from unicorn_async.ops.sample_rows import SamplingPath
from unicorn_async.step.buckets import bucket_sizes
from unicorn_async.tensor import MixedTensor, Tensor, element_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unicorn_async.config import EngineConfig, ModelConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.lora.plan import LoraPlan
    from unicorn_async.ops.attention import GpuAttention
    from unicorn_async.ops.kv_cache import AttentionShape
    from unicorn_async.tensor import ElementType, Weight
    from unicorn_async.weights.plan import LoadPlan

_FIRST_STEPS = (32, 1)  # tokens: a short prompt, then decoding


def kernel_requests(
    info: DeviceInfo,
    model: ModelConfig,
    shape: AttentionShape,
    attention: GpuAttention | None,
    seam: Iterable[KernelRequest],
    matrices: Mapping[str, Weight],
    plan: LoadPlan,
    lora: LoraPlan,
    options: EngineConfig,
    *,
    from_cache: bool = False,
) -> tuple[KernelRequest, ...]:
    """Return what to compile, in the order of need: the load, a short prompt and decoding, then more of both.

    `attention` is what attends on this device; where another one does, `seam` names what leads there. A load
    `from_cache` converts nothing.
    """
    head = matrices[head_name(model)]
    others = tuple(size for size in bucket_sizes(options.max_num_batched_tokens) if size not in _FIRST_STEPS)
    first_rows, *other_rows = bucket_sizes(max_logit_rows(options))
    load = (checksum_kernel(info),) if from_cache else conversion_kernels(plan, lora)
    requests = [
        *(replace(request, urgent=True) for request in load),
        embedding.kernel_for(_table_type(matrices["embed"])),
        *_rows(info, model, matrices, attention, _FIRST_STEPS),
        *_linears(info, model, matrices, _FIRST_STEPS),
        *_head(info, model, head, (first_rows,)),
        *rotary.kernels_for(info, shape, qk_norm=model.qk_norm, plus_one=model.norm_plus_one),
        *seam,
        *_attention(info, model, matrices, attention, _FIRST_STEPS),
        *(() if attention is None else page_touch.kernels_for(info, matrices.values())),
        *_plain(sampling.kernels_for(info, SamplingPath.GREEDY)),
        *_plain(sampling.kernels_for(info, SamplingPath.FULL, penalties=True)),
        *_rows(info, model, matrices, attention, others),
        *_linears(info, model, matrices, others),
        *_head(info, model, head, other_rows),
        *_attention(info, model, matrices, attention, others),
    ]
    return tuple({_key(request): request for request in requests}.values())


def _attention(
    info: DeviceInfo,
    model: ModelConfig,
    matrices: Mapping[str, Weight],
    attention: GpuAttention | None,
    sizes: tuple[int, ...],
) -> Iterable[KernelRequest]:
    if attention is None:
        return
    rotation = rotary.rotation_constants(
        q_scale=model.softmax_scale, qk_norm=model.qk_norm, eps=model.norm_eps, plus_one=model.norm_plus_one
    )
    for size in sizes:
        form = linear.input_form(info, matrices["layers.0.o"], size)
        written = form if attention.writes(form) else RowForm.FLOATS
        yield from attention.kernels_for([written], rotation if size <= MAX_ROTATING_TOKENS else None, num_tokens=size)


def _rows(
    info: DeviceInfo,
    model: ModelConfig,
    matrices: Mapping[str, Weight],
    attention: GpuAttention | None,
    sizes: tuple[int, ...],
) -> Iterable[KernelRequest]:
    """Norms and gates, which write the forms that the linears after them read in steps of these sizes."""
    layer = {part: matrices[f"layers.0.{part}"] for part in ("qkv", "o", "gate_up", "down")}
    forms = {linear.input_form(info, layer[part], size) for part in ("qkv", "gate_up") for size in sizes}
    yield from norm.kernels_for(
        info,
        model.hidden_size,
        forms=frozenset(forms),
        head_forms=frozenset(),
        post_norms=model.post_norms,
        plus_one=model.norm_plus_one,
    )
    unformed = [
        size for size in sizes if attention is None or not attention.writes(linear.input_form(info, layer["o"], size))
    ]
    yield from linear.input_kernels_for(info, layer["o"], num_tokens=unformed)
    bare = [size for size in sizes if not linear.leaves_blocks(info, layer["gate_up"], size)]
    yield from linear.input_kernels_for(info, layer["down"], num_tokens=bare)
    unfused = [size for size in sizes if not linear.fuses_gate(info, layer["gate_up"], size)]
    for form in dict.fromkeys(linear.input_form(info, layer["down"], size) for size in unfused):
        yield gated.kernel_for(info, model.intermediate_size, model.activation, form)


def _linears(
    info: DeviceInfo, model: ModelConfig, matrices: Mapping[str, Weight], sizes: tuple[int, ...]
) -> Iterable[KernelRequest]:
    for part in ("qkv", "o", "gate_up", "down"):
        has_bias = {"qkv": model.qkv_bias, "o": model.output_bias}.get(part, False)
        gate = part == "gate_up"
        yield from linear.kernels_for(
            info,
            matrices[f"layers.0.{part}"],
            num_tokens=sizes,
            epilogue=Epilogue(0 if has_bias else None, gate=model.activation if gate else None),
            blocked=gate and not isinstance(matrices["layers.0.down"], Tensor),
        )


def _head(info: DeviceInfo, model: ModelConfig, head: Weight, num_rows: Sequence[int]) -> Iterable[KernelRequest]:
    """The output head with the norm before it, in steps with so many rows of logits."""
    yield from norm.kernels_for(
        info,
        model.hidden_size,
        forms=frozenset(),
        head_forms=frozenset(linear.input_form(info, head, size) for size in num_rows),
        post_norms=model.post_norms,
        plus_one=model.norm_plus_one,
    )
    yield from linear.kernels_for(info, head, num_tokens=num_rows, epilogue=Epilogue(soft_cap=model.logit_soft_cap))


def _table_type(table: Weight) -> ElementType:
    assert not isinstance(table, MixedTensor), "the embeddings are one tensor"
    return element_of(table)


def _plain(kernels: Iterable[tuple[str, Mapping[str, int | float | bool]]]) -> Iterable[KernelRequest]:
    return (KernelRequest(name, constants) for name, constants in kernels)


def _key(request: KernelRequest) -> tuple[str, tuple[tuple[str, int | float | bool], ...], int | None]:
    return request.name, tuple(sorted(request.constants.items())), request.subgroup_size
