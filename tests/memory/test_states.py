"""How many sequences a step has where each keeps a state of fixed size, on made-up devices."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.golden.cases import CASES
from tests.gpu.made_up import GIB, NVIDIA_REBAR
from unicorn_async.config import EngineConfig
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.memory.plan import plan_memory
from unicorn_async.memory.states import StatePlan, plan_states
from unicorn_async.models.registry import model_spec
from unicorn_async.tensor import QuantFormat
from unicorn_async.weights.placement import MemoryGroup

from .test_plan import LLAMA_8B, load_plan

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec

SIZES = {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
}
STATE_BYTES = 4 * (48 * 128 * 128 + 3 * (2 * 16 + 48) * 128)  # of a layer


def qwen(num_layers: int) -> dict[str, object]:
    """Qwen 3.5 27B, with so many of its 64 layers."""
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * (num_layers // 4)
    return {**CASES["qwen3_5"].config, **SIZES, "num_hidden_layers": num_layers, "layer_types": kinds}


LARGE = model_spec(qwen(64))
SMALL = model_spec(qwen(16))


def plan_for(model: ModelSpec, left_bytes: int, *, least_bytes: int = 0, **options: Any) -> StatePlan:
    return plan_states(model, EngineConfig(**options), left_bytes=left_bytes, least_bytes=least_bytes)


def chosen(model: ModelSpec, left_bytes: int, **options: Any) -> tuple[int, int]:
    plan = plan_for(model, left_bytes, **{"speculation": "off"} | options)
    return plan.num_seqs, plan.num_copies


def test_where_nobody_asks_states_take_a_quarter_of_what_is_left_at_most() -> None:
    assert chosen(LARGE, 8 * GIB)[0] == 2 * GIB // (48 * STATE_BYTES) == 13
    assert chosen(LARGE, 100 * GIB)[0] == 32
    assert chosen(LARGE, -GIB) == (1, 0)
    assert chosen(LARGE, 8 * GIB, max_num_seqs=20)[0] == 20
    assert chosen(LLAMA_8B, 0) == (32, 0)


def test_copies_take_an_eighth_of_what_is_left_beside_states_where_prefixes_are_shared() -> None:
    each = 48 * STATE_BYTES
    assert chosen(LARGE, 40 * each, max_num_seqs=8)[1] == 4
    assert chosen(LARGE, 40 * each, max_num_seqs=8, least_bytes=30 * each)[1] == 2
    assert chosen(LARGE, 40 * each, max_num_seqs=8, prefix_cache=False)[1] == 0
    assert chosen(LARGE, 40 * each, max_num_seqs=50)[1] == 0
    assert chosen(LARGE, 4000 * each, max_num_seqs=8)[1] == 64


def test_what_is_proposed_has_a_sixteenth_of_what_is_left_and_with_a_draft_four_states_at_least() -> None:
    each = 48 * STATE_BYTES
    plan = plan_for(LARGE, 56 * each, max_num_seqs=8)
    assert (plan.num_copies, plan.num_spare, plan.num_states) == (5, 3, 16)
    assert plan.can_go_back
    assert plan_for(LARGE, 4000 * each, max_num_seqs=8).num_spare == 64
    few = plan_for(LARGE, 30 * each, max_num_seqs=8)
    assert (few.num_spare, few.can_go_back) == (0, False)
    assert plan_for(LARGE, 0, max_num_seqs=8, draft="other").num_spare == 4
    assert plan_for(LARGE, 4000 * each, max_num_seqs=8, speculation="off").num_spare == 0
    assert plan_for(LLAMA_8B, 0).can_go_back


def test_there_are_states_for_so_many_sequences_and_the_plan_says_why() -> None:
    plan = plan_memory(SMALL, EngineConfig(), load_plan(SMALL, QuantFormat.INT4), NVIDIA_REBAR, host_bytes=48 * GIB)
    num_seqs = plan.states.num_seqs
    assert 4 < num_seqs < 32
    claims = [claim for block in plan.placement.blocks for claim in block.claims if claim.group is MemoryGroup.STATE]
    assert plan.states.num_copies > 4
    assert plan.states.num_spare > 1
    assert {claim.nbytes for claim in claims} == {plan.states.num_states * STATE_BYTES}
    assert re.fullmatch(
        rf"a step has {num_seqs} sequences at most, not 32: the state of each takes {12 * STATE_BYTES:,} bytes .*"
        "--max-num-seqs.*",
        plan.states.text(32),
    )


def test_states_that_do_not_fit_are_told_with_their_sizes_and_the_option_that_helps() -> None:
    asked = EngineConfig(max_num_seqs=128)
    each = 12 * STATE_BYTES
    expected = rf"the states of 128 sequences {128 * each:,}, {each:,} each.*a smaller --max-num-seqs than 128"
    with pytest.raises(OutOfMemoryError, match=expected):
        plan_memory(SMALL, asked, load_plan(SMALL, QuantFormat.INT4), NVIDIA_REBAR, host_bytes=48 * GIB)
