"""Attention on the GPU: flash-decoding for sequences with one query, tiles with an online softmax for longer chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.config import KVDType
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.attention_plan import AttentionPlan
from unicorn_async.ops.rows import RowForm, form_fields, form_of
from unicorn_async.tensor import QUANT_BLOCK, DType, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.attention_op import AttentionBatch
    from unicorn_async.ops.kv_cache import AttentionShape, KVCache
    from unicorn_async.ops.rotary import HeadRotation
    from unicorn_async.ops.rows import Rows

_MAX_PREFETCH_DIM = 128  # larger heads leave no registers for the keys and values that are under way


class GpuAttention:
    """Attention by compute shaders; an `AttentionOp`."""

    def __init__(self, info: DeviceInfo, kernels: Kernels, shape: AttentionShape, *, soft_cap: float = 0.0) -> None:
        """Plan for one shape; `soft_cap` (0 = none) makes scores cap * tanh(score / cap)."""
        self.plan = AttentionPlan.of(info, shape)
        self._kernels = kernels
        self._soft_cap = soft_cap
        self._suffix = shape.kv_dtype.value

    def writes(self, form: RowForm) -> bool:
        """See `AttentionOp`: halves are for values that come out of a cache of halves and can't overflow them."""
        shape = self.plan.shape
        if shape.latent_dim:  # whose results are rows of heads, that no form of tokens' rows has
            return form is RowForm.FLOATS
        if form is RowForm.BLOCKS:
            return shape.head_dim % QUANT_BLOCK == 0 and self.plan.lanes * self.plan.lane_elements >= QUANT_BLOCK
        return form is RowForm.FLOATS or shape.kv_dtype is not KVDType.F32

    def kernels_for(
        self,
        forms: Iterable[RowForm] = (RowForm.FLOATS,),
        rotation: Mapping[str, float | bool] | None = None,
        *,
        num_tokens: int = 1,
    ) -> tuple[KernelRequest, ...]:
        """Name the pipelines that `record` will get in steps of so many tokens: decode and prefill by form of results.

        With `rotation`, see `rotation_constants`, decoding that rotates comes in addition, and first.
        """
        decodes = ({},) if rotation is None else (rotation, {})
        return tuple(
            request
            for form in forms
            for request in (
                *(self._decode_request(form, each, num_tokens) for each in decodes),
                self._prefill_request(form),
            )
        )

    @property
    def _latent(self) -> dict[str, int]:
        """The constant by which values are found in keys."""
        latent = self.plan.shape.latent_dim
        return {"LATENT": latent} if latent else {}

    def _decode_request(
        self, form: RowForm, rotation: Mapping[str, float | bool], num_tokens: int, *, has_sinks: bool = False
    ) -> KernelRequest:
        plan, shape, cut = self.plan, self.plan.shape, self.plan.cut(num_tokens)
        constants: dict[str, int | float | bool] = {
            "WORKGROUP": cut.workgroup,
            "HEAD_DIM": shape.head_dim,
            "HEADS": plan.decode_heads,
            "BLOCK_SIZE": shape.block_size,
            "LANES": cut.lanes,
            "TILE": cut.tile,
            **({"GROWTH": cut.growth} if cut.growth else {}),
            "MAX_SPLITS": plan.max_splits,
            "SOFT_CAP": self._soft_cap,
            "UNROLL": cut.unroll,
            "MAX_SUBGROUPS": cut.subgroups,
            "NUM_HEADS": shape.num_heads,
            "NUM_KV_HEADS": shape.num_kv_heads,
            **rotation,
            **({"HAS_SINKS": True} if has_sinks else {}),
            **self._latent,
        }
        return KernelRequest(f"attention_decode_{self._suffix}_{form.value}", constants, plan.subgroup)

    def _prefill_request(self, form: RowForm, *, has_sinks: bool = False) -> KernelRequest:
        plan, shape = self.plan, self.plan.shape
        constants: dict[str, int | float | bool] = {
            "HEAD_DIM": shape.head_dim,
            "HEADS": plan.prefill_heads,
            "BLOCK_SIZE": shape.block_size,
            "SOFT_CAP": self._soft_cap,
            **({"HAS_SINKS": True} if has_sinks else {}),
        }
        if plan.matrix_subgroup is not None:
            size = plan.matrix_subgroup
            prefetches = shape.head_dim <= _MAX_PREFETCH_DIM * plan.matrix_shares
            constants |= {"WORKGROUP": 4 * size, "SUBGROUP": size, "PREFETCH": prefetches}
            if plan.matrix_shares > 1:
                constants["SHARES"] = plan.matrix_shares
            return KernelRequest(f"attention_prefill_coopmat_{self._suffix}_{form.value}", constants, size)
        lanes = plan.rows // 4 * (shape.head_dim // 8)
        constants |= {"WORKGROUP": lanes, "ROWS": plan.rows, "KEYS": plan.prefill_keys, **self._latent}
        return KernelRequest(f"attention_prefill_{self._suffix}_{form.value}", constants, plan.subgroup)

    def record(
        self,
        recorder: Recorder,
        *,
        q: Tensor,
        cache: KVCache,
        window: int,
        batch: AttentionBatch,
        out: Rows,
        rotation: HeadRotation | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """Record one layer's attention, as `AttentionOp.record` says; decode and prefill run side by side.

        Raises ConfigError for other shapes, UnsupportedModelError for a form that this one does not write, and for
        sinks beside norms of q and k.
        """
        shape = self.plan.shape
        num_heads = shape.num_heads
        if rotation is not None:
            num_heads += (1 if rotation.v_from_k else 2) * shape.num_kv_heads
        sizes = ("q", q, num_heads * shape.head_dim), ("out", out, shape.num_heads * shape.value_dim)
        for name, rows, columns in sizes:
            if isinstance(rows, Tensor):
                rows.expect(f"attention: {name}", (q.shape[0], columns), DType.F32)
        if sinks is not None:
            sinks.expect("attention: sinks", (shape.num_heads,), DType.F32)
            if rotation is not None and rotation.norms is not None:
                raise UnsupportedModelError("attention: sinks beside norms of q and k are not supported")
        if not self.writes(form_of(out)):
            cache_type, form = shape.kv_dtype.value, form_of(out).value
            raise UnsupportedModelError(f"attention: {form} of heads of {shape.head_dim} and a cache of {cache_type}")
        if batch.has_decode:
            self._decode(
                recorder, q=q, cache=cache, window=window, batch=batch, out=out, rotation=rotation, sinks=sinks
            )
        if batch.has_prefill:
            assert rotation is None, "steps with prompts rotate before they attend"
            self._prefill(recorder, q=q, cache=cache, window=window, batch=batch, out=out, sinks=sinks)

    def _decode(
        self,
        recorder: Recorder,
        *,
        q: Tensor,
        cache: KVCache,
        window: int,
        batch: AttentionBatch,
        out: Rows,
        rotation: HeadRotation | None,
        sinks: Tensor | None,
    ) -> None:
        norms = None if rotation is None else rotation.norms
        constants = {} if rotation is None else rotation.constants
        request = self._decode_request(form_of(out), constants, q.shape[0], has_sinks=sinks is not None)
        q_weight = sinks if norms is None else norms.q_weight  # there is room for one of both
        kernel = self._kernels.get(request.name, constants=request.constants, subgroup_size=request.subgroup_size)
        push = kernel.pack(
            q=q.address,
            k_cache=cache.k,
            v_cache=cache.v,
            **form_fields(out),
            partials=batch.scratch.partials,
            splits_done=batch.scratch.split_counters,
            items=batch.decode_items,
            context_len=batch.context_len,
            block_table=batch.block_table,
            freqs=0 if rotation is None else rotation.freqs,
            q_weight=0 if q_weight is None else q_weight.address,
            k_weight=0 if norms is None else norms.k_weight.address,
            max_blocks=batch.max_blocks,
            window=window,
        )
        recorder.dispatch_indirect(kernel, push, batch.grids, batch.decode_grid_offset)

    def _prefill(
        self,
        recorder: Recorder,
        *,
        q: Tensor,
        cache: KVCache,
        window: int,
        batch: AttentionBatch,
        out: Rows,
        sinks: Tensor | None,
    ) -> None:
        request = self._prefill_request(form_of(out), has_sinks=sinks is not None)
        kernel = self._kernels.get(request.name, constants=request.constants, subgroup_size=request.subgroup_size)
        push = kernel.pack(
            q=q.address,
            k_cache=cache.k,
            v_cache=cache.v,
            **form_fields(out),
            tiles=batch.prefill_tiles,
            query_start=batch.query_start,
            query_len=batch.query_len,
            context_len=batch.context_len,
            block_table=batch.block_table,
            sinks=0 if sinks is None else sinks.address,
            max_blocks=batch.max_blocks,
            window=window,
            num_heads=self.plan.shape.num_heads,
            num_kv_heads=self.plan.shape.num_kv_heads,
        )
        recorder.dispatch_indirect(kernel, push, batch.grids, batch.prefill_grid_offset)
