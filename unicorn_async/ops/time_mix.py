"""RWKV-7's time mixing: a delta rule whose decay and rate are vectors, over the tokens of each sequence.

Source: RWKV-7 "Goose" (arXiv 2503.14456), section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.rows import check_columns, form_fields, form_of, row_constants
from unicorn_async.ops.runs import KEPT_TOKENS, SHORTEST_CHUNKED
from unicorn_async.ops.subgroups import asked_subgroup_size
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.rows import Rows

_VECTOR = 4
_LANES = 4  # that hold a row of the state
_WORKGROUP = 32
_UNIT = _LANES * _VECTOR
_MOST_DIM = 256
_CHUNK_DIM = 128  # at most
_ROWS_BESIDE_CHUNKS = 8  # of a workgroup that finds few short runs among them


@dataclass(frozen=True, slots=True)
class TimeMixShape:
    """Heads, each with a matrix of a sequence: a row for each element of a value, a column for each of a key.

    What a sequence keeps of a layer is the last row that was shifted into its time mixing, (columns) f32, these
    matrices, (num_heads, head_dim, head_dim) f32, and the last row of its channel mixing.

    Raises:
        UnsupportedModelError: heads that no kernel takes.
    """

    num_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if self.head_dim % _UNIT or not 0 < self.head_dim <= _MOST_DIM:
            raise UnsupportedModelError(
                f"time mixing: heads of {self.head_dim} elements, expected a multiple of {_UNIT} up to {_MOST_DIM}"
            )

    @property
    def columns(self) -> int:
        """Elements of a token's keys, or of its values."""
        return self.num_heads * self.head_dim

    @property
    def matrices_offset(self) -> int:
        """Where the matrices of a sequence begin, in bytes."""
        return 4 * self.columns

    @property
    def channel_offset(self) -> int:
        """Where the last row of its channel mixing begins."""
        return self.matrices_offset + 4 * self.columns * self.head_dim

    @property
    def state_bytes(self) -> int:
        """All that a sequence keeps of a layer."""
        return self.channel_offset + 4 * self.columns

    @property
    def chunk_columns(self) -> int:
        """What `time_mix_chunk` leaves of a token: rows of keys and of factors, two each a head; 0 without a kernel."""
        return 2 * self.num_heads * (self.head_dim + KEPT_TOKENS) if self.head_dim <= _CHUNK_DIM else 0

    def takes_chunks(self, num_tokens: int) -> bool:
        """Whether a step of so many tokens, prompts among them, may have runs that go in chunks."""
        return num_tokens >= SHORTEST_CHUNKED and self.chunk_columns > 0


class MixedRows(NamedTuple):
    """What the recurrence reads of tokens, each (tokens, columns) f32: see `time_mix_keys`."""

    r: Tensor
    w: Tensor
    k: Tensor
    v: Tensor
    a: Tensor
    direction: Tensor

    def check(self, what: str, shape: TimeMixShape) -> int:
        """Return the number of tokens; raises ConfigError for other shapes."""
        num_tokens = self.r.shape[0]
        for name, tensor in self._asdict().items():
            tensor.expect(f"{what}: {name}", (num_tokens, shape.columns), DType.F32)
        return num_tokens


def time_mix_keys(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    shape: TimeMixShape,
    *,
    rows: MixedRows,
    first: Tensor,
    blend: Tensor | None,
    k_k: Tensor,
    k_a: Tensor,
) -> None:
    """Record what becomes of products in their places, and each head's `direction`: k * k_k, brought to length 1.

    w becomes exp(-exp(-0.5) * sigmoid(w)), a rate = sigmoid(a) times the direction, and k k * (1 + (rate - 1) * k_a).
    v moves towards `first`, the first layer's, by sigmoid(`blend`); without `blend` it is the first layer's and goes
    there. Both are (tokens, columns) f32, `k_k` and `k_a` (columns) f32. Raises ConfigError for other shapes.
    """
    num_tokens = rows.check("time_mix_keys", shape)
    for name, vector in (("k_k", k_k), ("k_a", k_a)):
        vector.expect(f"time_mix_keys: {name}", (shape.columns,), DType.F32)
    for name, tensor in (("first", first), ("blend", blend)):
        if tensor is not None:
            tensor.expect(f"time_mix_keys: {name}", (num_tokens, shape.columns), DType.F32)
    vectors = shape.head_dim // _VECTOR
    lanes = min(vectors, info.subgroup_size)
    constants: dict[str, int | bool] = {
        "WORKGROUP": lanes,
        "VECTORS": -(-vectors // lanes),
        "HEAD_VECTORS": vectors,
        "BLENDS": blend is not None,
    }
    kernel = kernels.get("time_mix_keys", constants=constants)
    push = kernel.pack(
        w=rows.w.address,
        k=rows.k.address,
        a=rows.a.address,
        v=rows.v.address,
        direction=rows.direction.address,
        blend=0 if blend is None else blend.address,
        first=first.address,
        k_k=k_k.address,
        k_a=k_a.address,
        columns=shape.columns // _VECTOR,
    )
    recorder.dispatch(kernel, push, shape.num_heads, num_tokens)


def time_mix(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    shape: TimeMixShape,
    *,
    rows: MixedRows,
    state: int,
    runs: int,
    positions: int,
    out: Tensor,
    is_beside_chunks: bool = False,
) -> None:
    """Record the recurrence of each head: S = S diag(w) - (S direction) a^T + v k^T, and out = S r.

    `rows` are as `time_mix_keys` leaves them, `out` is (tokens, columns) f32. `state` is the address of (states,
    state_bytes), `runs` that of (tokens) TOKEN_RUN, `positions` of (tokens) u32. S begins with zeros at position 0.
    Rows without a token are left alone, and beside chunks those of runs that `time_mix_chunks` takes. Raises
    ConfigError for other shapes.
    """
    num_tokens = rows.check("time_mix", shape)
    out.expect("time_mix: out", (num_tokens, shape.columns), DType.F32)
    num_rows = _ROWS_BESIDE_CHUNKS if is_beside_chunks else 1
    constants = {
        "WORKGROUP": _WORKGROUP,
        "LANES": _LANES,
        "VECTORS": shape.head_dim // _UNIT,
        "ROWS": num_rows,
        "CHUNKED": is_beside_chunks,
    }
    kernel = kernels.get("time_mix", constants=constants, subgroup_size=asked_subgroup_size(info))
    push = kernel.pack(
        r=rows.r.address,
        w=rows.w.address,
        k=rows.k.address,
        direction=rows.direction.address,
        b=rows.a.address,
        v=rows.v.address,
        state=state,
        runs=runs,
        positions=positions,
        y=out.address,
        columns=shape.columns // _VECTOR,
        state_bytes=shape.state_bytes,
        state_offset=shape.matrices_offset,
        num_rows=num_tokens,
    )
    recorder.dispatch(kernel, push, shape.columns * _LANES // _WORKGROUP, -(-num_tokens // num_rows))


def time_mix_out(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    shape: TimeMixShape,
    *,
    x: Tensor,
    rows: MixedRows,
    gate: Tensor,
    r_k: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    out: Rows,
) -> None:
    """Record out = (norm(x) * weight + bias + (r . (k * r_k)) v) * gate, with norm and product of each head by itself.

    `x` and `gate` are (tokens, columns) f32, `r_k` has as many elements as `weight` and `bias`, (columns) f32; `out` is
    like `x`, in whatever form and elsewhere.

    Raises ConfigError for other shapes, UnsupportedModelError for columns that are no multiple of the form's unit.
    """
    num_tokens, columns = rows.check("time_mix_out", shape), shape.columns
    check_columns("time_mix_out", columns, form_of(out))
    for name, tensor in (("x", x), ("gate", gate)):
        tensor.expect(f"time_mix_out: {name}", (num_tokens, columns), DType.F32)
    for name, tensor in (("weight", weight), ("bias", bias)):
        tensor.expect(f"time_mix_out: {name}", (columns,), DType.F32)
    constants = {
        **row_constants(info, columns),
        "HEADS": shape.num_heads,
        "HEAD_VECTORS": shape.head_dim // _VECTOR,
    }
    kernel = kernels.get(f"time_mix_out_{form_of(out).value}", constants=constants)
    push = kernel.pack(
        **form_fields(out),
        x=x.address,
        r=rows.r.address,
        k=rows.k.address,
        v=rows.v.address,
        gate=gate.address,
        r_k=r_k.address,
        weight=weight.address,
        bias=bias.address,
        eps=eps,
    )
    recorder.dispatch(kernel, push, num_tokens)
