"""Records a decoder's part of a step: embeddings, layers, output head.

Every architecture of this package is this decoder with other numbers in its `ModelConfig`. A layer begins with the
addition of what the layer before it left in `branch`, so that no layer needs a weight of the next one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.models.weights import head_name
from unicorn_async.ops.attention_plan import MAX_ROTATING_TOKENS
from unicorn_async.ops.embedding import embed
from unicorn_async.ops.gated import gated
from unicorn_async.ops.linear import Epilogue, fuses_gate, input_rows, leaves_blocks, linear
from unicorn_async.ops.norm import add_rms_norm, rms_norm
from unicorn_async.ops.page_touch import MAX_TOUCH_TOKENS, touch_pages
from unicorn_async.ops.rotary import HeadNorms, HeadRotation, rope_cache
from unicorn_async.ops.rows import BlockRows, form_of
from unicorn_async.tensor import DType, MixedTensor, Tensor, element_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unicorn_async.config import Activation, ModelConfig
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelLibrary
    from unicorn_async.models.activations import Activations
    from unicorn_async.models.step_arrays import StepArrays
    from unicorn_async.ops.attention_device import AttentionBatch, AttentionDevice
    from unicorn_async.ops.kv_cache import AttentionShape, KVCache
    from unicorn_async.ops.rows import Rows
    from unicorn_async.tensor import ElementType, Weight


@dataclass(frozen=True, slots=True)
class DecoderState:
    """A model in device memory, all borrowed; whoever allocated it keeps it until the decoder's last step is done.

    Weights need not have memory before what reads them is recorded.
    """

    weights: Mapping[str, Tensor]  # vectors by destination name, see `wanted_tensors`
    matrices: Mapping[str, Weight]  # all others, alike
    freqs: Sequence[int]  # per layer: address of the rotary frequencies
    activations: Activations
    last_token: int  # address of (state slots) u32


class Decoder:
    """Records segments of a step; it owns nothing on the device.

    Each segment ends with a barrier, so that segments may follow each other in one submission or in several, and those
    of another step may come between two of them.
    """

    def __init__(
        self,
        config: ModelConfig,
        shape: AttentionShape,
        kernels: KernelLibrary,
        info: DeviceInfo,
        state: DecoderState,
        *,
        touches_pages: bool,
    ) -> None:
        """Record for one model; `shape` is that of the cache that keys and values are written to.

        `touches_pages` is what `pays_to_touch` says of all its matrices.
        """
        self._config = config
        self._shape = shape
        self._kernels = kernels
        self._info = info
        self._state = state
        self._touches = touches_pages

    def record_embed(self, recorder: CommandRecorder, step: StepArrays, num_tokens: int) -> None:
        """Record the embedding rows of a step's tokens into its `hidden`."""
        table = self._state.matrices["embed"]
        out = self._residual(step.residual.hidden, num_tokens)
        assert not isinstance(table, MixedTensor), "the embeddings are one tensor"
        embed(
            recorder,
            self._kernels,
            table=table,
            token_ids=step.token_ids,
            last_token=self._state.last_token,
            out=out,
            scale=embedding_scale(self._config, element_of(table)),
        )
        recorder.barrier()

    def record_layer(
        self,
        recorder: CommandRecorder,
        step: StepArrays,
        num_tokens: int,
        layer: int,
        *,
        attention: AttentionDevice,
        cache: KVCache,
        slot_mapping: int,
        batch: AttentionBatch,
        chains: bool = False,
    ) -> None:
        """Record one layer; `batch` is the attention's work in it, `slot_mapping` the address of (tokens) u32.

        With `chains` the next layer is there as well, and follows in the same submission.
        """
        columns = self._config.num_heads * self._config.head_dim
        q, attended = self._rows("q", num_tokens, columns), self._input(f"layers.{layer}.o", "attention", num_tokens)
        if not attention.writes(form_of(attended)):
            attended = self._rows("attention", num_tokens, columns)
        rotation = None
        # A prompt's new keys are read by workgroups that would not make them.
        if batch.has_prefill or num_tokens > MAX_ROTATING_TOKENS:
            self.record_before_attention(recorder, step, layer, q=q, cache=cache, slot_mapping=slot_mapping)
        else:
            q, rotation = self._heads(recorder, step, layer, num_tokens), self._rotation(layer)
        window = self._config.layer_windows[layer]
        attention.record(recorder, q=q, cache=cache, window=window, batch=batch, out=attended, rotation=rotation)
        self._touch_pages(recorder, num_tokens, layer, chains=chains)
        recorder.barrier()
        self.record_after_attention(recorder, step, num_tokens, layer, attended)

    def record_before_attention(
        self, recorder: CommandRecorder, step: StepArrays, layer: int, *, q: Tensor, cache: KVCache, slot_mapping: int
    ) -> None:
        """Record a layer up to its attention: rotated q, (tokens, num_heads * head_dim) f32, and k and v in `cache`.

        `slot_mapping` is the address of (tokens) u32, see `rope_cache`. Of what it computed only the step's own
        `hidden` is needed after it, so that other work may come before the rest of the layer.
        """
        qkv = self._heads(recorder, step, layer, q.shape[0])
        rope_cache(
            recorder,
            self._kernels,
            self._info,
            shape=self._shape,
            qkv=qkv,
            q=q,
            cache=cache,
            rotation=self._rotation(layer),
            positions=step.positions,
            slot_mapping=slot_mapping,
        )
        recorder.barrier()

    def record_after_attention(
        self, recorder: CommandRecorder, step: StepArrays, num_tokens: int, layer: int, attended: Rows
    ) -> None:
        """Record the rest of a layer; `attended` is the attention's result, f32 or in the form that `linear` reads."""
        hidden = self._residual(step.residual.hidden, num_tokens)
        branch = self._residual(step.residual.branch, num_tokens)
        self._linear(recorder, attended, f"layers.{layer}.o", branch, num_tokens)
        normed = self._input(f"layers.{layer}.gate_up", "normed", num_tokens)
        self._add_norm(
            recorder,
            branch,
            hidden,
            post=f"layers.{layer}.post_attention_norm",
            weight=f"layers.{layer}.ffn_norm",
            out=normed,
        )
        activated = self._gate(recorder, layer, normed, num_tokens)
        self._linear(recorder, activated, f"layers.{layer}.down", branch, num_tokens)

    def record_head(self, recorder: CommandRecorder, step: StepArrays, num_tokens: int, num_rows: int) -> Tensor:
        """Record the logits of chosen rows; returns where they will be, (num_rows, vocab) f32."""
        config, head = self._config, head_name(self._config)
        chosen = self._input(head, "chosen", num_rows)
        self._add_norm(
            recorder,
            self._residual(step.residual.branch, num_tokens),
            self._residual(step.residual.hidden, num_tokens),
            post=f"layers.{config.num_layers - 1}.post_ffn_norm",
            weight="norm",
            out=chosen,
            rows=step.logit_rows,
            num_rows=num_rows,
        )
        logits = self._rows("logits", num_rows, config.vocab_size)
        self._linear(recorder, chosen, head, logits, num_rows, soft_cap=config.logit_soft_cap)
        return logits

    def _heads(self, recorder: CommandRecorder, step: StepArrays, layer: int, num_tokens: int) -> Tensor:
        """Record a layer up to its q, k and v, not yet rotated; returns these, side by side for each token."""
        config = self._config
        hidden = self._residual(step.residual.hidden, num_tokens)
        branch = self._residual(step.residual.branch, num_tokens)
        normed = self._input(f"layers.{layer}.qkv", "normed", num_tokens)
        self._input_norm(recorder, layer, hidden, branch, normed)
        qkv = self._rows("qkv", num_tokens, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
        self._linear(recorder, normed, f"layers.{layer}.qkv", qkv, num_tokens)
        return qkv

    def _input_norm(self, recorder: CommandRecorder, layer: int, hidden: Tensor, branch: Tensor, normed: Rows) -> None:
        weight = f"layers.{layer}.input_norm"
        if layer:
            post = f"layers.{layer - 1}.post_ffn_norm"
            self._add_norm(recorder, branch, hidden, post=post, weight=weight, out=normed)
            return
        rms_norm(
            recorder,
            self._kernels,
            self._info,
            x=hidden,
            weight=self._state.weights[weight],
            out=normed,
            eps=self._config.norm_eps,
            plus_one=self._config.norm_plus_one,
        )
        recorder.barrier()

    def _gate(self, recorder: CommandRecorder, layer: int, normed: Rows, num_tokens: int) -> Rows:
        """Record the FFN up to its activations; returns these, in the form that `down` reads."""
        config, name = self._config, f"layers.{layer}.gate_up"
        matrix = self._state.matrices[name]
        if fuses_gate(self._info, matrix, num_tokens):
            out: Tensor | BlockRows = self._rows("gated", num_tokens, config.intermediate_size)
            wanted = self._input(f"layers.{layer}.down", "gated", num_tokens)
            if isinstance(wanted, BlockRows) and leaves_blocks(self._info, matrix, num_tokens):
                # Not into the scratch, which holds the input. Blocks are smaller than the floats whose place they take.
                place = self._state.activations.address["gated"]
                out = BlockRows.at(place, num_tokens, config.intermediate_size)
            self._linear(recorder, normed, name, out, num_tokens, gate=config.activation)
            return out
        gate_up = self._rows("gate_up", num_tokens, 2 * config.intermediate_size)
        self._linear(recorder, normed, name, gate_up, num_tokens)
        activated = self._input(f"layers.{layer}.down", "gated", num_tokens)
        gated(recorder, self._kernels, self._info, gate_up=gate_up, out=activated, activation=config.activation)
        recorder.barrier()
        return activated

    def _touch_pages(self, recorder: CommandRecorder, num_tokens: int, layer: int, *, chains: bool) -> None:
        """Record, beside the attention, the search for what is read from there to the next layer's attention."""
        if not self._touches or num_tokens > MAX_TOUCH_TOKENS:
            return
        names = [f"layers.{layer}.{part}" for part in ("o", "gate_up", "down")]
        if chains:
            names.append(f"layers.{layer + 1}.qkv")
        weights = [self._state.matrices[name] for name in names]
        touch_pages(recorder, self._kernels, weights, sink=self._state.activations.address["touched"])

    def _rotation(self, layer: int) -> HeadRotation:
        config, norms = self._config, None
        if config.qk_norm:
            q_weight, k_weight = (self._state.weights[f"layers.{layer}.{part}_norm"] for part in "qk")
            norms = HeadNorms(q_weight, k_weight, config.norm_eps, config.norm_plus_one)
        return HeadRotation(self._state.freqs[layer], config.softmax_scale, norms)

    def _add_norm(
        self,
        recorder: CommandRecorder,
        branch: Tensor,
        hidden: Tensor,
        *,
        post: str,
        weight: str,
        out: Rows,
        rows: int = 0,
        num_rows: int | None = None,
    ) -> None:
        add_rms_norm(
            recorder,
            self._kernels,
            self._info,
            x=branch,
            hidden=hidden,
            post_weight=self._state.weights[post] if self._config.post_norms else None,
            weight=self._state.weights[weight],
            out=out,
            eps=self._config.norm_eps,
            plus_one=self._config.norm_plus_one,
            rows=rows,
            num_rows=num_rows,
        )
        recorder.barrier()

    def _linear(
        self,
        recorder: CommandRecorder,
        x: Rows,
        name: str,
        out: Tensor | BlockRows,
        num_tokens: int,
        *,
        soft_cap: float = 0.0,
        gate: Activation | None = None,
    ) -> None:
        bias = self._state.weights.get(f"{name}_bias")
        linear(
            recorder,
            self._kernels,
            self._info,
            x=x,
            weight=self._state.matrices[name],
            out=out,
            num_tokens=num_tokens,
            scratch=self._state.activations.scratch,
            epilogue=Epilogue(None if bias is None else bias.address, soft_cap, gate),
        )

    def _input(self, weight: str, name: str, num_tokens: int) -> Rows:
        """Where the input of a weight belongs: the scratch, or `name` where floats are wanted."""
        matrix, activations = self._state.matrices[weight], self._state.activations
        floats = self._rows(name, num_tokens, matrix.shape[1])
        return input_rows(self._info, matrix, num_tokens, floats=floats, scratch=activations.scratch)

    def _residual(self, address: int, num_tokens: int) -> Tensor:
        return Tensor(address, (num_tokens, self._config.hidden_size), DType.F32)

    def _rows(self, name: str, num_rows: int, columns: int) -> Tensor:
        return self._state.activations.rows(name, num_rows, columns)


def embedding_scale(config: ModelConfig, table_type: ElementType) -> float:
    """Return the factor on embedding rows, rounded to the table's type as transformers does it, unless quantised."""
    if table_type is DType.F16:
        return float(struct.unpack("<e", struct.pack("<e", config.embedding_scale))[0])
    if table_type is DType.BF16:
        bits = struct.unpack("<I", struct.pack("<f", config.embedding_scale))[0]
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", rounded))[0])
    return config.embedding_scale
