"""The gated delta rule over the tokens of each sequence, and the short convolution in front of it.

Source: Gated Delta Networks (arXiv 2412.06464); transformers' `modeling_qwen3_5.py`, `Qwen3_5GatedDeltaNet`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.ops.runs import KEPT_TOKENS, SHORTEST_CHUNKED
from unicorn_async.ops.subgroups import asked_subgroup_size
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder

_VECTOR = 4
_LANES = 4  # that hold a column of the state
_WORKGROUP = 32
_STATE_WORKGROUP = 64
_ROWS_BESIDE_CHUNKS = 8  # of a workgroup that finds few short runs among them
_UNIT = _LANES * _VECTOR
_CHUNK_KEY_DIM = 128  # at most


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Heads of keys, each for equally many heads of values, and the taps of the convolution.

    Head p of values belongs to head p // (values / keys) of keys, or if they are `tiled` to head p mod keys. Decays are
    logarithms of the rates, or with `has_rates` these themselves, below zero.

    Raises:
        UnsupportedModelError: heads that no kernel takes.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    num_taps: int
    is_tiled: bool = False
    has_rates: bool = False

    def __post_init__(self) -> None:
        if self.num_value_heads % self.num_key_heads:
            raise UnsupportedModelError(
                f"delta rule: {self.num_value_heads} heads of values, no multiple of {self.num_key_heads} heads of keys"
            )
        if self.num_taps > KEPT_TOKENS:
            raise UnsupportedModelError(f"delta rule: {self.num_taps} taps of the convolution, at most {KEPT_TOKENS}")
        if self.key_dim % _UNIT or self.key_dim > 256 or self.value_dim % _VECTOR:
            raise UnsupportedModelError(
                f"delta rule: heads of {self.key_dim} and {self.value_dim} elements, expected a multiple of {_UNIT} up "
                f"to 256, and one of {_VECTOR}"
            )

    @property
    def columns(self) -> int:
        """Elements of a token's queries, keys and values, which the convolution takes."""
        return 2 * self.num_key_heads * self.key_dim + self.value_columns

    @property
    def value_columns(self) -> int:
        """Elements of a token's values."""
        return self.num_value_heads * self.value_dim

    @property
    def conv_bytes(self) -> int:
        """What a sequence keeps for the convolution: its last inputs, (num_taps - 1, columns) f32."""
        return 4 * (self.num_taps - 1) * self.columns

    @property
    def state_bytes(self) -> int:
        """All that a sequence keeps: `conv_bytes`, then (num_value_heads, value_dim, key_dim) f32."""
        return self.conv_bytes + 4 * self.value_columns * self.key_dim

    @property
    def chunk_columns(self) -> int:
        """What `delta_chunk` leaves of a token: two rows of factors and two decays a head; 0 without such a kernel."""
        return self.num_value_heads * (2 * KEPT_TOKENS + 4) if self.key_dim <= _CHUNK_KEY_DIM else 0

    def takes_chunks(self, num_tokens: int) -> bool:
        """Whether a step of so many tokens, prompts among them, may have runs that go in chunks."""
        return num_tokens >= SHORTEST_CHUNKED and self.chunk_columns > 0


@dataclass(frozen=True, slots=True)
class DeltaTokens:
    """What the recurrence of a step's tokens reads, whichever kernels compute it.

    `qkv` is what `delta_conv` leaves, (tokens, columns) f32; `ba` (tokens, 2 * num_value_heads) f32, all b before all
    a; `decays` and `decay_bias` (num_value_heads) f32. `state` is the address of (states, state_bytes), `runs` that of
    (tokens) TOKEN_RUN, `positions` of (tokens) u32.
    """

    shape: DeltaShape
    qkv: Tensor
    ba: Tensor
    decays: Tensor
    decay_bias: Tensor
    state: int
    runs: int
    positions: int

    @property
    def num_rows(self) -> int:
        """Tokens of the step, those that nobody has among them."""
        return self.qkv.shape[0]

    def expect(self, name: str) -> None:
        """Raise ConfigError, with the name of who reads them, for tensors of other shapes."""
        heads = self.shape.num_value_heads
        self.qkv.expect(f"{name}: qkv", (self.num_rows, self.shape.columns), DType.F32)
        self.ba.expect(f"{name}: ba", (self.num_rows, 2 * heads), DType.F32)
        self.decays.expect(f"{name}: decays", (heads,), DType.F32)
        self.decay_bias.expect(f"{name}: decay_bias", (heads,), DType.F32)

    @property
    def heads(self) -> dict[str, int]:
        """A kernel's constants of the heads."""
        shape = self.shape
        return {"KEY_HEADS": shape.num_key_heads, "VALUE_HEADS": shape.num_value_heads, "TILED": shape.is_tiled}

    @property
    def pushed_rows(self) -> dict[str, int]:
        """A kernel's arguments of the tokens."""
        return {
            "qkv": self.qkv.address,
            "runs": self.runs,
            "row_columns": self.shape.columns // _VECTOR,
            "num_rows": self.num_rows,
        }

    @property
    def pushed_gates(self) -> dict[str, int]:
        """A kernel's arguments of beta and the decay."""
        return {
            "ba": self.ba.address,
            "decays": self.decays.address,
            "decay_bias": self.decay_bias.address,
        }

    @property
    def pushed_states(self) -> dict[str, int]:
        """A kernel's arguments of what sequences keep."""
        return {
            "state": self.state,
            "positions": self.positions,
            "state_bytes": self.shape.state_bytes,
            "state_offset": self.shape.conv_bytes,
        }


def delta_conv(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    shape: DeltaShape,
    *,
    projected: Tensor,
    taps: Tensor,
    state: int,
    runs: int,
    positions: int,
    out: Tensor,
) -> None:
    """Record out = silu(conv(x)), queries and keys brought to length 1 a head, and queries divided by key_dim ** 0.5.

    `projected` is (tokens, columns or more) f32, x first: queries, keys, values; `taps` (columns, num_taps) f32, the
    oldest first; `out` (tokens, columns) f32. `state` is the address of (states, state_bytes), `runs` that of (tokens)
    TOKEN_RUN, `positions` of (tokens) u32. Rows without a token are left alone. Raises ConfigError for other shapes.
    """
    num_tokens, row_columns = projected.shape
    projected.expect("delta_conv: projected", (num_tokens, row_columns), DType.F32)
    taps.expect("delta_conv: taps", (shape.columns, shape.num_taps), DType.F32)
    out.expect("delta_conv: out", (num_tokens, shape.columns), DType.F32)
    lanes = min(_WORKGROUP, info.subgroup_size)
    constants: dict[str, int | float] = {
        "WORKGROUP": lanes,
        "TAPS": shape.num_taps,
        "VECTORS": -(-max(shape.key_dim, shape.value_dim) // (_VECTOR * lanes)),
        "KEY_HEADS": shape.num_key_heads,
        "KEY_VECTORS": shape.key_dim // _VECTOR,
        "VALUE_VECTORS": shape.value_dim // _VECTOR,
        "Q_SCALE": shape.key_dim**-0.5,
    }
    kernel = kernels.get("delta_conv", constants=constants)
    push = kernel.pack(
        projected=projected.address,
        taps=taps.address,
        state=state,
        runs=runs,
        positions=positions,
        y=out.address,
        columns=shape.columns // _VECTOR,
        row_columns=row_columns // _VECTOR,
        state_bytes=shape.state_bytes,
    )
    recorder.dispatch(kernel, push, 2 * shape.num_key_heads + shape.num_value_heads, num_tokens)


def delta_conv_state(
    recorder: Recorder, kernels: Kernels, shape: DeltaShape, *, projected: Tensor, state: int, runs: int
) -> None:
    """Record what `delta_conv` of later steps needs of this one, behind it and a barrier; arguments are as there."""
    num_tokens, row_columns = projected.shape
    constants = {"WORKGROUP": _STATE_WORKGROUP, "TAPS": shape.num_taps}
    kernel = kernels.get("delta_conv_state", constants=constants)
    push = kernel.pack(
        projected=projected.address,
        state=state,
        runs=runs,
        columns=shape.columns // _VECTOR,
        row_columns=row_columns // _VECTOR,
        state_bytes=shape.state_bytes,
    )
    recorder.dispatch(kernel, push, -(-shape.columns // (_VECTOR * _STATE_WORKGROUP)), num_tokens)


def delta_rule(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    tokens: DeltaTokens,
    *,
    out: Tensor,
    is_beside_chunks: bool = False,
) -> None:
    """Record the recurrence of each head of values: S = exp(g) S + beta k (v - exp(g) k S), and out = q S.

    g = rate * softplus(a + decay_bias), beta = sigmoid(b), and rate = -exp(decay) if the shape has not the rates.
    `out` is (tokens, value_columns) f32. S begins with zeros at position 0. Beside chunks, runs that `delta_chunks`
    takes are left to it. Raises ConfigError for other shapes.
    """
    shape = tokens.shape
    tokens.expect("delta_rule")
    out.expect("delta_rule: out", (tokens.num_rows, shape.value_columns), DType.F32)
    rows = _ROWS_BESIDE_CHUNKS if is_beside_chunks else 1
    constants = tokens.heads | {
        "WORKGROUP": _WORKGROUP,
        "LANES": _LANES,
        "VECTORS": shape.key_dim // _UNIT,
        "VALUE_DIM": shape.value_dim,
        "RATES": shape.has_rates,
        "ROWS": rows,
        "CHUNKED": is_beside_chunks,
    }
    kernel = kernels.get("delta_rule", constants=constants, subgroup_size=asked_subgroup_size(info))
    push = kernel.pack(**tokens.pushed_rows, **tokens.pushed_gates, **tokens.pushed_states, y=out.address)
    num_slices = shape.num_value_heads * -(-shape.value_dim // (_WORKGROUP // _LANES))
    recorder.dispatch(kernel, push, num_slices, -(-tokens.num_rows // rows))
