"""What the estimate for RDNA3 counts of experts, of states of linear attention, and of attention."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.gpu.listing import ListedDispatch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

from rdna3_work import attention_work, expert_work, recurrent_work
from routing import Routing

STATE = 2 * 128 * 64  # elements of two heads


def dispatch(name: str, constants: dict[str, int | bool], **fields: int) -> ListedDispatch:
    return ListedDispatch(KernelRequest(name, constants), "", fields)


def test_experts_are_read_once_each_and_by_many_tokens_all_of_them() -> None:
    routing = Routing(num_experts=32, num_chosen=4)
    assert [round(routing.distinct(tokens), 1) for tokens in (1, 2, 1000)] == [4, 7.5, 32]
    one = expert_work(dispatch("expert_vec_f16", {"GATED": True}, n=10, k=64), routing, 1)
    assert one.num_bytes == 4 * 20 * 64 * 2 + 4 * (64 * 2 + 20 * 4)
    assert one.macs == pytest.approx(4 * 20 * 64)


def test_tiles_of_experts_are_filled_up_by_as_many_rows_as_chance_leaves() -> None:
    assert Routing(num_experts=32, num_chosen=4).rows(100, 1) == pytest.approx(400)
    assert Routing(num_experts=2, num_chosen=1).rows(2, 2) == pytest.approx(2 * 2 * 0.75)
    assert Routing(num_experts=4, num_chosen=4).rows(33, 32) == 4 * 64
    work = expert_work(dispatch("expert_quant_coopmat_q8", {"TILE_T": 2}, n=10, blocks=2), Routing(2, 1), 2)
    assert work.macs == pytest.approx(3 * 10 * 64)


@pytest.mark.parametrize(("tokens", "is_prompt", "sequences"), [(8, False, 8), (8, True, 1)])
def test_a_state_is_read_and_written_once_a_sequence(tokens: int, is_prompt: bool, sequences: int) -> None:
    constants = {"VALUE_HEADS": 2, "VALUE_VECTORS": 16}
    fields = {"row_columns": 96, "state_bytes": 4 * STATE + 100, "state_offset": 100}
    work = recurrent_work(dispatch("delta_chunks", constants, **fields), tokens, is_prompt=is_prompt)
    assert work.num_bytes == sequences * 2 * 4 * STATE + tokens * 96 * 16
    assert work.macs == tokens * (3 * STATE + 2 * 32 * 64)
    rest = dispatch("delta_rule", {**constants, "CHUNKED": True}, **fields)
    assert (recurrent_work(rest, tokens, is_prompt=is_prompt).macs > 0) is not is_prompt


def test_what_tokens_of_mamba_2_do_to_each_other_is_counted_for_heads_of_keys() -> None:
    constants = {"KEY_HEADS": 1, "KEY_VECTORS": 32, "VALUE_HEADS": 2, "VALUE_VECTORS": 16}
    fields = {"row_columns": 96, "left_bytes": 160, "state_bytes": 4 * STATE + 100, "state_offset": 100}
    alone, kept = (dispatch(name, constants, **fields) for name in ("ssm_chunk", "ssm_chunks"))
    assert recurrent_work(alone, 8, is_prompt=True).macs == 8 * 32 * 128
    assert recurrent_work(alone, 8, is_prompt=True).num_bytes == 8 * (96 * 16 + 160)
    assert recurrent_work(kept, 8, is_prompt=True).macs == 8 * (2 * STATE + 2 * 32 * 64)


def test_streams_read_their_windows_and_a_prompt_reads_itself() -> None:
    heads = {"NUM_HEADS": 8, "NUM_KV_HEADS": 1, "HEAD_DIM": 64}
    decode = attention_work(dispatch("attention_decode_f16_blocks", heads, window=100), tokens=4, context=256)
    assert decode.num_bytes == 2 * 4 * 100 * 64 * 2 + 4 * 8 * 64 * 6
    prompt = dispatch("attention_prefill_f16_blocks", {"HEAD_DIM": 64}, window=0, num_heads=8, num_kv_heads=1)
    assert attention_work(prompt, tokens=9, context=9).macs == 2 * 9 * 5 * 8 * 64
