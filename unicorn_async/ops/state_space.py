"""Mamba-2's recurrence over the tokens of each sequence, the convolution in front of it, and the norm behind it.

Source: Transformers are SSMs (arXiv 2405.21060); transformers' `modeling_granitemoehybrid.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
_LANES = 4  # that hold a column of the state
_WORKGROUP = 32
_CONV_WORKGROUP = 64
_ROWS_BESIDE_CHUNKS = 8  # of a workgroup that finds few short runs among them
_UNIT = _LANES * _VECTOR
_CHUNK_KEY_DIM = 128  # at most
MOST_STEP = 3.4e38  # of f32


@dataclass(frozen=True, slots=True)
class SsmShape:
    """Heads of values, each of a group of equally many that share keys and queries (B and C), and the taps.

    Head p belongs to group p // (heads / groups). Rates are logarithms, or with `has_rates` these themselves, below
    zero. A token's step of a head is between `least_step` and `most_step`.

    Raises:
        UnsupportedModelError: heads that no kernel takes.
    """

    num_groups: int
    num_heads: int
    state_dim: int
    head_dim: int
    num_taps: int
    has_rates: bool = False
    least_step: float = 0.0
    most_step: float = MOST_STEP

    def __post_init__(self) -> None:
        if self.num_heads % self.num_groups or self.num_heads % _VECTOR:
            raise UnsupportedModelError(
                f"Mamba-2: {self.num_heads} heads, expected a multiple of {_VECTOR} and of {self.num_groups} groups"
            )
        if not 2 <= self.num_taps <= KEPT_TOKENS:
            raise UnsupportedModelError(
                f"Mamba-2: {self.num_taps} taps of the convolution, expected 2 to {KEPT_TOKENS}"
            )
        if self.state_dim % _UNIT or self.state_dim > 256 or self.head_dim % _VECTOR:
            raise UnsupportedModelError(
                f"Mamba-2: states of {self.state_dim} and heads of {self.head_dim} elements, expected a multiple of "
                f"{_UNIT} up to 256, and one of {_VECTOR}"
            )
        if not 0 <= self.least_step <= self.most_step <= MOST_STEP:
            raise UnsupportedModelError(
                f"Mamba-2: steps from {self.least_step} to {self.most_step}, expected 0 to {MOST_STEP}, in order"
            )

    @property
    def inner(self) -> int:
        """Elements of a token's values, and of their gates."""
        return self.num_heads * self.head_dim

    @property
    def columns(self) -> int:
        """Elements of a token's values, keys and queries, which the convolution takes."""
        return self.inner + 2 * self.num_groups * self.state_dim

    @property
    def projected(self) -> int:
        """Elements of a token's projection: gates, what the convolution takes, and a step a head."""
        return self.inner + self.columns + self.num_heads

    @property
    def conv_bytes(self) -> int:
        """What a sequence keeps for the convolution: its last inputs, (num_taps - 1, columns) f32."""
        return 4 * (self.num_taps - 1) * self.columns

    @property
    def state_bytes(self) -> int:
        """All that a sequence keeps: `conv_bytes`, then (num_heads, head_dim, state_dim) f32."""
        return self.conv_bytes + 4 * self.inner * self.state_dim

    @property
    def chunk_columns(self) -> int:
        """What `ssm_chunk` leaves of a token: a row of products a group, a gate a head; 0 without such a kernel."""
        gates = self.num_groups * KEPT_TOKENS + self.num_heads * _VECTOR
        return gates if self.state_dim <= _CHUNK_KEY_DIM else 0

    def takes_chunks(self, num_tokens: int) -> bool:
        """Whether a step of so many tokens, prompts among them, may have runs that go in chunks."""
        return num_tokens >= SHORTEST_CHUNKED and self.chunk_columns > 0


@dataclass(frozen=True, slots=True)
class SsmTokens:
    """What the recurrence of a step's tokens reads, whichever kernels compute it.

    `projected` is (tokens, shape.projected) f32: gates, what `ssm_conv` takes, steps before their softplus; `xbc` what
    it leaves, (tokens, columns) f32. `rates`, `step_bias` and `skips` are (num_heads) f32. `state` is the address of
    (states, state_bytes), `runs` that of (tokens) TOKEN_RUN, `positions` of (tokens) u32.
    """

    shape: SsmShape
    projected: Tensor
    xbc: Tensor
    rates: Tensor
    step_bias: Tensor
    skips: Tensor
    state: int
    runs: int
    positions: int

    @property
    def num_rows(self) -> int:
        """Tokens of the step, those that nobody has among them."""
        return self.xbc.shape[0]

    def expect(self, name: str) -> None:
        """Raise ConfigError, with the name of who reads them, for tensors of other shapes."""
        self.projected.expect(f"{name}: projected", (self.num_rows, self.shape.projected), DType.F32)
        self.xbc.expect(f"{name}: xbc", (self.num_rows, self.shape.columns), DType.F32)
        for what, tensor in (("rates", self.rates), ("step_bias", self.step_bias), ("skips", self.skips)):
            tensor.expect(f"{name}: {what}", (self.shape.num_heads,), DType.F32)

    @property
    def heads(self) -> dict[str, int]:
        """A kernel's constants of the heads."""
        return {"KEY_HEADS": self.shape.num_groups, "VALUE_HEADS": self.shape.num_heads}

    @property
    def pushed_rows(self) -> dict[str, int]:
        """A kernel's arguments of the tokens."""
        return {
            "xbc": self.xbc.address,
            "runs": self.runs,
            "row_columns": self.shape.columns // _VECTOR,
            "num_rows": self.num_rows,
        }

    @property
    def pushed_steps(self) -> dict[str, int | float]:
        """A kernel's arguments of steps and decays."""
        shape = self.shape
        return {
            "steps": self.projected.address + 4 * (shape.inner + shape.columns),
            "rates": self.rates.address,
            "step_bias": self.step_bias.address,
            "step_columns": shape.projected,
            "least_step": shape.least_step,
            "most_step": shape.most_step,
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


def ssm_conv(recorder: Recorder, kernels: Kernels, tokens: SsmTokens, *, taps: Tensor, bias: Tensor | None) -> None:
    """Record xbc = silu(conv(x) + bias), where the convolution goes back through a sequence's tokens.

    `taps` is (columns, num_taps) f32, the oldest first, `bias` (columns) f32. Rows without a token are left alone.
    Raises ConfigError for other shapes.
    """
    shape = tokens.shape
    tokens.expect("ssm_conv")
    taps.expect("ssm_conv: taps", (shape.columns, shape.num_taps), DType.F32)
    if bias is not None:
        bias.expect("ssm_conv: bias", (shape.columns,), DType.F32)
    constants = {"WORKGROUP": _CONV_WORKGROUP, "TAPS": shape.num_taps, "HAS_BIAS": bias is not None}
    kernel = kernels.get("ssm_conv", constants=constants)
    push = kernel.pack(
        **_conv_rows(tokens),
        taps=taps.address,
        bias=0 if bias is None else bias.address,
        positions=tokens.positions,
        y=tokens.xbc.address,
    )
    recorder.dispatch(kernel, push, -(-shape.columns // (_VECTOR * _CONV_WORKGROUP)), tokens.num_rows)


def ssm_conv_state(recorder: Recorder, kernels: Kernels, tokens: SsmTokens) -> None:
    """Record what `ssm_conv` of later steps needs of this one, behind it and a barrier."""
    shape = tokens.shape
    tokens.expect("ssm_conv_state")
    kernel = kernels.get("delta_conv_state", constants={"WORKGROUP": _CONV_WORKGROUP, "TAPS": shape.num_taps})
    groups = -(-shape.columns // (_VECTOR * _CONV_WORKGROUP))
    recorder.dispatch(kernel, kernel.pack(**_conv_rows(tokens)), groups, tokens.num_rows)


def ssm_scan(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    tokens: SsmTokens,
    *,
    out: Tensor,
    is_beside_chunks: bool = False,
) -> None:
    """Record the recurrence of each head: S = exp(-rate step) S + B (step x), and out = C S + skip x.

    step = softplus(projected + step_bias) within its bounds. `out` is (tokens, inner) f32. S begins with zeros at
    position 0. Beside chunks, runs that `ssm_chunks` takes are left to it. Raises ConfigError for other shapes.
    """
    shape = tokens.shape
    tokens.expect("ssm_scan")
    out.expect("ssm_scan: out", (tokens.num_rows, shape.inner), DType.F32)
    rows = _ROWS_BESIDE_CHUNKS if is_beside_chunks else 1
    constants = tokens.heads | {
        "WORKGROUP": _WORKGROUP,
        "LANES": _LANES,
        "VECTORS": shape.state_dim // _UNIT,
        "VALUE_DIM": shape.head_dim,
        "RATES": shape.has_rates,
        "ROWS": rows,
        "CHUNKED": is_beside_chunks,
    }
    kernel = kernels.get("ssm_scan", constants=constants, subgroup_size=asked_subgroup_size(info))
    push = kernel.pack(
        **tokens.pushed_rows,
        **tokens.pushed_steps,
        **tokens.pushed_states,
        skips=tokens.skips.address,
        y=out.address,
    )
    num_slices = shape.num_heads * -(-shape.head_dim // (_WORKGROUP // _LANES))
    recorder.dispatch(kernel, push, num_slices, -(-tokens.num_rows // rows))


def gated_norm(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    *,
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    num_groups: int,
    eps: float,
    out: Rows,
) -> None:
    """Record out = RMSNorm of x * silu(gate), over each of so many groups of columns, times `weight`.

    `x` is (tokens, columns) f32, `gate` (tokens, columns or more) f32 with the gates first, `weight` (columns) f32;
    `out` is like `x`, in whatever form, and may be `x`. Raises ConfigError for other shapes, UnsupportedModelError for
    columns that are no multiple of the form's unit.
    """
    num_tokens, columns = x.shape
    check_columns("gated_norm", columns, form_of(out))
    check_columns("gated_norm: groups", columns // num_groups, form_of(x))
    x.expect("gated_norm: x", (num_tokens, columns), DType.F32)
    gate.expect("gated_norm: gate", (num_tokens, gate.shape[1]), DType.F32)
    weight.expect("gated_norm: weight", (columns,), DType.F32)
    constants = {**row_constants(info, columns), "GROUPS": num_groups}
    kernel = kernels.get(f"gated_norm_{form_of(out).value}", constants=constants)
    push = kernel.pack(
        **form_fields(out),
        x=x.address,
        gate=gate.address,
        weight=weight.address,
        columns=columns // _VECTOR,
        row_columns=gate.shape[1] // _VECTOR,
        eps=eps,
    )
    recorder.dispatch(kernel, push, num_tokens)


def _conv_rows(tokens: SsmTokens) -> dict[str, int]:
    shape = tokens.shape
    return {
        "projected": tokens.projected.address + 4 * shape.inner,
        "state": tokens.state,
        "runs": tokens.runs,
        "columns": shape.columns // _VECTOR,
        "row_columns": shape.projected // _VECTOR,
        "state_bytes": shape.state_bytes,
    }
