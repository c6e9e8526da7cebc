"""How linear_quant_held is cut: the kernel for quantised weights and one or two tokens on GPUs. Pure: needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.ops.linear_input import InputForm
from unicorn_async.ops.linear_plan import LinearPlan, known_subgroup_size, split_grid
from unicorn_async.tensor import QUANT_BLOCK

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.linear_plan import Options
    from unicorn_async.tensor import QuantFormat

MAX_HELD = 8  # blocks of activations in a lane's registers, ten of which each takes, over all tokens
MAX_HELD_TOKENS = 2
_HELD = 4  # blocks of a token and lane, at most
_SPLITS = (8, 4, 2, 1)
_SUBGROUPS, _SHARING_SUBGROUPS = 4, 8  # of a workgroup, the latter where four subgroups or more share a row
_BLOCKED_SUBGROUPS = 16  # of a workgroup that leaves its output in blocks, and so has many rows
_WORKGROUPS = 800  # twice what an H200 has under way of them; where there are more, each makes several passes
_MAX_PASSES = 3


@dataclass(frozen=True, slots=True)
class HeldTuning:
    """For `tokens` tokens: a workgroup has `subgroups` subgroups, of which `split` share a row.

    These take `rows` weight rows at a time, `passes` times; with `ahead` they fetch those of the next pass meanwhile.
    """

    tokens: int
    subgroups: int
    split: int
    rows: int
    passes: int = 1
    ahead: bool = False


def can_hold(info: DeviceInfo, num_tokens: int, k: int) -> bool:
    """Whether lanes have room for an input (num_tokens, k), and are as many in a subgroup as the kernel is told.

    On the CPU registers are few, and a barrier is dear.
    """
    fixed = "subgroup_size_control" in info.features or info.min_subgroup_size == info.max_subgroup_size
    fits = _held(info, k // QUANT_BLOCK, max(_splits(info))) <= _HELD
    return fits and fixed and not info.is_software and num_tokens <= MAX_HELD_TOKENS


def fetches_ahead(num_tokens: int, held: int, quant_format: QuantFormat) -> bool:
    """Whether fetching a pass ahead pays, for twice the registers: with eight bits a code, where passes are long."""
    return num_tokens == 1 and held > 1 and quant_format.layout.quant_bytes == QUANT_BLOCK


def held_tuning(
    info: DeviceInfo, num_tokens: int, n: int, k: int, quant_format: QuantFormat, *, gated: bool, blocked: bool
) -> HeldTuning:
    """Choose a cut for y (num_tokens, n) = x (num_tokens, k) · weight (n, k)^T where `can_hold` allows it.

    As many subgroups share a row as leaves the fewest lanes without a block.
    """
    blocks = k // QUANT_BLOCK
    fitting = [split for split in _splits(info) if _held(info, blocks, split) <= _HELD]
    split = min(fitting, key=lambda split: split * _held(info, blocks, split))
    subgroups = _BLOCKED_SUBGROUPS if blocked else _SHARING_SUBGROUPS if split >= _SUBGROUPS else _SUBGROUPS
    rows = 2 if gated or _held(info, blocks, split) > 1 else 1
    passes = max(1, min(_MAX_PASSES, n // (rows * subgroups // split * _WORKGROUPS)))
    ahead = fetches_ahead(num_tokens, _held(info, blocks, split), quant_format)
    return HeldTuning(num_tokens, subgroups, split, rows, 1 if blocked else passes, ahead)


def held_plan(
    info: DeviceInfo,
    tuning: HeldTuning,
    num_tokens: int,
    n: int,
    k: int,
    quant_format: QuantFormat,
    options: Options = (),
    *,
    blocked: bool = False,
) -> LinearPlan:
    """linear_quant_held with the given tuning; a `blocked` output has whole blocks for each workgroup."""
    lanes = known_subgroup_size(info)
    subgroups = min(tuning.subgroups, info.max_workgroup_invocations // lanes) // tuning.split * tuning.split
    outputs = tuning.rows // 2 if dict(options).get("GATED", False) else tuning.rows
    outputs *= subgroups // tuning.split
    passes = tuning.passes
    if blocked:
        per_block = max(1, QUANT_BLOCK // outputs)
        passes = -(-passes // per_block) * per_block
    constants = {
        "WORKGROUP": subgroups * lanes,
        "ROWS": tuning.rows,
        "TOKENS": tuning.tokens,
        "PASSES": passes,
        "HELD": _held(info, k // QUANT_BLOCK, tuning.split),
        "SPLIT": tuning.split,
        "SUBGROUP": lanes,
        "AHEAD": tuning.ahead,
    }
    options = (*options, ("BLOCKED", True)) if blocked else options
    x, y = split_grid(-(-(n // 2 if "GATED" in dict(options) else n) // (outputs * passes)))
    grid = (x, y, -(-num_tokens // tuning.tokens))
    entry = f"linear_quant_held_{quant_format.layout.name}"
    return LinearPlan(entry, (*constants.items(), *options), grid, form=InputForm.BLOCKS)


def _splits(info: DeviceInfo) -> list[int]:
    """Into how many subgroups of a workgroup a row may be cut."""
    most = info.max_workgroup_invocations // known_subgroup_size(info)
    return [split for split in _SPLITS if split <= most]


def _held(info: DeviceInfo, blocks: int, split: int) -> int:
    return -(-blocks // (known_subgroup_size(info) * split))
