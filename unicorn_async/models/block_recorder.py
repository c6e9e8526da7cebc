"""What blocks record with: a step's commands, its residual stream, and the weights and workspace of one layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.ops.columns import gather_columns
from unicorn_async.ops.embedding import embed, embedding_scale
from unicorn_async.ops.linear import NO_EPILOGUE, input_rows, linear
from unicorn_async.ops.norm import add_rms_norm, rms_norm
from unicorn_async.ops.page_touch import MAX_TOUCH_TOKENS, touch_pages
from unicorn_async.tensor import DType, MixedTensor, Tensor, element_of
from unicorn_async.weights.column_order import order_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.models.activations import Activations
    from unicorn_async.models.blocks.declarations import Norm, Residue
    from unicorn_async.models.step_arrays import StepArrays
    from unicorn_async.ops.attention_op import AttentionBatch, AttentionOp
    from unicorn_async.ops.kv_cache import AttentionShape, KVCache
    from unicorn_async.ops.linear import Epilogue
    from unicorn_async.ops.rows import BlockRows, Rows
    from unicorn_async.rotary import RotaryConfig
    from unicorn_async.tensor import Weight

BRANCH = "branch"  # what a block leaves, from when it has entered until it leaves something


@dataclass(frozen=True, slots=True)
class DecoderState:
    """A model in device memory, all borrowed; whoever allocated it keeps it until the last step is done.

    Weights need not have memory before what reads them is recorded.
    """

    weights: Mapping[str, Tensor]  # vectors by destination
    matrices: Mapping[str, Weight]  # all others, alike
    freqs: Mapping[tuple[RotaryConfig, int], int]  # for heads of a size: addresses of what `frequencies` returns
    activations: Activations
    last_token: int  # address of (states) u32


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Where one layer's attention of a step finds its work; `slot_mapping` is the address of (tokens) u32."""

    device: AttentionOp
    cache: KVCache
    slot_mapping: int
    batch: AttentionBatch


@dataclass(frozen=True, slots=True)
class FixedPlace:
    """Where one layer's state of fixed size lies: the address of (states, bytes of a sequence).

    With `has_prompts` a sequence may have several tokens in the step.
    """

    address: int
    has_prompts: bool


@dataclass(frozen=True, slots=True)
class RecordingTools:
    """What every recording of a model needs; `shape` is that of the cache that its first attention writes to."""

    kernels: Kernels
    info: DeviceInfo
    shape: AttentionShape
    state: DecoderState


class BlockRecorder:
    """Records blocks one after the other; what each leaves in `branch` is added by who comes next.

    `hidden` and `branch` are (tokens, hidden_size) f32. Names of weights are those of the layer, whose `prefix` they
    get; every method that records ends with a barrier, but for `touch_pages` and a `linear` that does not wait.
    """

    def __init__(
        self,
        commands: Recorder,
        tools: RecordingTools,
        arrays: StepArrays,
        num_tokens: int,
        hidden_size: int,
        *,
        prefix: str = "",
        left: Residue | None = None,
        place: LayerAttention | FixedPlace | None = None,
        touched: tuple[str, ...] = (),
    ) -> None:
        """Record behind what `left` a residue, its norm with its prefix; None: the stream is whole.

        `place` is where the layer's state lies. `touched` are full names of weights that are read from the attention
        on.
        """
        self.commands = commands
        self.kernels = tools.kernels
        self.info = tools.info
        self.shape = tools.shape
        self.arrays = arrays
        self.num_tokens = num_tokens
        self.hidden = Tensor(arrays.residual.hidden, (num_tokens, hidden_size), DType.F32)
        self.branch = Tensor(arrays.residual.branch, (num_tokens, hidden_size), DType.F32)
        self._state = tools.state
        self._prefix = prefix
        self._left = left
        self._place = place
        self._touched = touched

    @property
    def attention(self) -> LayerAttention:
        """The layer's attention."""
        assert isinstance(self._place, LayerAttention), "the layer's attention is recorded elsewhere"
        return self._place

    @property
    def state(self) -> int:
        """The address of the layer's state of fixed size, (states, bytes of a sequence)."""
        return self._fixed.address

    def carried(self, columns: int) -> Tensor:
        """Return what a layer leaves for all behind it, (tokens, columns) f32: the spec's `carried_size` of a token."""
        return Tensor(
            self.branch.address + 4 * self.num_tokens * self.branch.shape[1], (self.num_tokens, columns), DType.F32
        )

    @property
    def has_prompts(self) -> bool:
        """Whether a sequence may have several tokens in the step, where the layer has a state of fixed size."""
        return self._fixed.has_prompts

    def barrier(self) -> None:
        """Make what was recorded visible to what follows."""
        self.commands.barrier()

    def weight(self, name: str) -> Weight:
        """Return a matrix or table."""
        return self._state.matrices[self._prefix + name]

    def vector(self, name: str) -> Tensor:
        """Return a norm's weight."""
        return self._state.weights[self._prefix + name]

    def model_vector(self, name: str) -> Tensor:
        """Return a norm's weight that is no layer's."""
        return self._state.weights[name]

    def look_up(self, name: str, out: Tensor, *, scale: float, first: int = 0) -> None:
        """Record the rows of the step's tokens in a table that is no layer's into `out`: columns from `first` on."""
        self._embed(name, self.arrays.token_ids, self._state.last_token, out, scale=scale, first=first)

    def look_up_next(self, name: str, out: Tensor, *, scale: float) -> None:
        """Record, behind the sampling, the rows of the tokens that come behind the step's."""
        self._embed(name, self.arrays.next_ids, self.arrays.results, out, scale=scale)

    def _embed(self, name: str, token_ids: int, sampled: int, out: Tensor, *, scale: float, first: int = 0) -> None:
        table = self._state.matrices[name]
        assert not isinstance(table, MixedTensor), "a table is one tensor"
        embed(
            self.commands,
            self.kernels,
            table=table,
            token_ids=token_ids,
            last_token=sampled,
            out=out,
            scale=embedding_scale(scale, element_of(table)),
            first=first,
        )
        self.barrier()

    def frequencies(self, rotary: RotaryConfig, head_dim: int) -> int:
        """Return the address of a rotary embedding's frequencies for heads of this size."""
        return self._state.freqs[rotary, head_dim]

    def rows(self, name: str, columns: int, num_rows: int | None = None) -> Tensor:
        """Return the first rows of an intermediate result as (num_rows, columns) f32; by default the step's tokens."""
        return self._state.activations.rows(name, self.num_tokens if num_rows is None else num_rows, columns)

    def input(self, weight: str, name: str, num_rows: int | None = None) -> Rows:
        """Where the input of a weight belongs: the scratch, or the result `name` where floats are wanted."""
        matrix = self.weight(weight)
        floats = self.rows(name, matrix.shape[1], num_rows)
        if self._order(weight) is not None:
            return floats
        scratch = self._state.activations.scratch
        return input_rows(self.info, matrix, floats.shape[0], floats=floats, scratch=scratch)

    def linear(
        self,
        x: Rows,
        name: str,
        out: Tensor | BlockRows,
        *,
        epilogue: Epilogue = NO_EPILOGUE,
        waits: bool = True,
        spare: str = "",
    ) -> None:
        """Record out = x · weight^T with the epilogue, to which the weight's bias is added if it has one.

        What does not need it may run beside it, unless it `waits`. Where the weight's columns are in another order, x
        is gathered likewise, into the intermediate result `spare`, or `BRANCH`: as large, and needed by nobody.
        """
        full_name = self._prefix + name
        bias = self._state.weights.get(f"{full_name}_bias")
        order = self._order(name)
        if order is not None:
            x = self._gathered(x, order, spare)
        self.commands.label(name)
        linear(
            self.commands,
            self.kernels,
            self.info,
            x=x,
            weight=self._state.matrices[full_name],
            out=out,
            num_tokens=out.shape[0] if isinstance(out, Tensor) else self.num_tokens,
            scratch=self._state.activations.scratch,
            epilogue=epilogue if bias is None else replace(epilogue, bias=bias.address),
            waits=waits,
        )

    def _order(self, weight: str) -> Tensor | None:
        return self._state.weights.get(order_name(self._prefix + weight))

    def _gathered(self, x: Rows, order: Tensor, spare: str) -> Tensor:
        assert isinstance(x, Tensor) and spare, "what is gathered are floats, and has a place"
        out = self.rows(spare, x.shape[1], x.shape[0]) if spare != BRANCH else replace(x, address=self.branch.address)
        self.commands.label("gather")
        gather_columns(self.commands, self.kernels, x=x, order=order, out=out)
        self.barrier()
        return out

    def enter(self, norm: Norm | None, weight: str, *, adds_after: bool = False) -> Rows:
        """Record the addition of what was left and the norm of the stream; returns that as input of `weight`.

        Without a norm it is the stream itself. With `adds_after` it is made of the stream before the addition.
        """
        normed = self.input(weight, "normed")
        self.add_norm(norm, out=normed, adds_after=adds_after)
        return normed

    def add_norm(
        self,
        norm: Norm | None,
        *,
        out: Rows,
        rows: int = 0,
        num_rows: int | None = None,
        scale: float = 1.0,
        adds_after: bool = False,
    ) -> None:
        """Record the addition of what was left, and `out`, the norm of the stream or of chosen rows of it.

        `rows` and the others as for `add_rms_norm`: with `rows` the stream itself stays as it is.
        """
        left, weight = self._left, None if norm is None else self.vector(norm.dest)
        plus_one, centred = (norm.plus_one, norm.centred) if norm is not None else (False, False)
        bias = self.vector(norm.bias_dest) if norm is not None and norm.bias else None
        if left is None:
            assert not rows and not adds_after, "something was left before"
            rms_norm(
                self.commands,
                self.kernels,
                self.info,
                x=self.hidden,
                weight=weight,
                out=out,
                eps=0.0 if norm is None else norm.eps,
                plus_one=plus_one,
                centred=centred,
                bias=bias,
                scale=scale,
            )
        else:
            add_rms_norm(
                self.commands,
                self.kernels,
                self.info,
                x=self.branch,
                hidden=self.hidden,
                post_weight=self._state.weights[left.norm] if left.norm else None,
                weight=weight,
                out=out,
                eps=left.eps if norm is None else norm.eps,
                plus_one=plus_one,
                centred=centred,
                bias=bias,
                branch_scale=left.scale,
                factor=self._state.weights[left.factor] if left.factor else None,
                scale=scale,
                adds_after=adds_after,
                rows=rows,
                num_rows=num_rows,
            )
        self.barrier()
        self._left = None

    def leave(self, residue: Residue) -> None:
        """Note how what the block left in `branch` is to be added."""
        self._left = residue.behind(self._prefix)

    @property
    def _fixed(self) -> FixedPlace:
        assert isinstance(self._place, FixedPlace), "the layer has no such state"
        return self._place

    def touch_pages(self) -> None:
        """Record, beside the attention, the search for what is read from there to the next layer's attention."""
        if not self._touched or self.num_tokens > MAX_TOUCH_TOKENS:
            return
        weights = [self._state.matrices[name] for name in self._touched]
        touch_pages(self.commands, self.kernels, weights, sink=self._state.activations.address["touched"])
