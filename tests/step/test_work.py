"""What dispatches are said to move and to compute, against counts made one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from unicorn_async.config import KVDType
from unicorn_async.gpu.manifest import Manifest
from unicorn_async.gpu.timed_recorder import DispatchTime
from unicorn_async.ops.kv_cache import head_nbytes
from unicorn_async.resources import resource_dir
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.step.work import DispatchWork, dispatch_work

from .entry_kernel import entry_kernel

if TYPE_CHECKING:
    from tests.engine.conftest import OpenEngine
    from unicorn_async.gpu.memory import Buffer

FRAME = 0x10000  # the frame's address
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64
HEAD_CONSTANTS = {"HEAD_DIM": HEAD_DIM, "NUM_HEADS": HEADS, "NUM_KV_HEADS": KV_HEADS, "ROTATES": False}


def work(name: str, groups: tuple[int, int, int] = (0, 0, 0), frame: Any = None, **fields: int) -> DispatchWork:
    """Count a dispatch of a kernel whose other fields are zero."""
    constants = HEAD_CONSTANTS | {"ROTATES": bool(fields.pop("rotates", 0)), "PAIRS": 1, "TILE_T": 32, "K": 2}
    entry = Manifest.read(resource_dir("shaders")).entries[name]
    kernel = entry_kernel(entry, constants)
    push = kernel.pack(**(dict.fromkeys(entry.push.names, 0) | fields))
    return dispatch_work(DispatchTime(kernel, push, 1000, groups, cast("Buffer | None", frame)))


def frame_of(*arrays: list[int]) -> tuple[Any, list[int]]:
    """Return mapped memory with arrays of u32, and where each begins."""
    places = [FRAME + 4 * sum(len(array) for array in arrays[:index]) for index in range(len(arrays))]
    words = np.concatenate([np.array(array, np.uint32) for array in arrays])
    return SimpleNamespace(address=FRAME, mapped=memoryview(words.tobytes())), places


@pytest.mark.parametrize("kv_dtype", list(KVDType))
@pytest.mark.parametrize("window", [0, 16])
@pytest.mark.parametrize("rotates", [False, True])
def test_decoding_reads_the_keys_and_values_that_its_queries_see(kv_dtype: KVDType, window: int, rotates: bool) -> None:
    contexts, rows = [5, 100, 17, 99], [3, 0, 2]  # the second sequence does not decode
    frame, (items, context_len) = frame_of(
        [value for index, row in enumerate(rows) for value in (row, index)], contexts
    )
    found = work(
        f"attention_decode_{kv_dtype.value}_floats",
        (7, 2, len(rows)),
        frame,
        items=items,
        context_len=context_len,
        window=window,
        rotates=rotates,
    )
    keys = sum(min(contexts[row], window or contexts[row]) for row in rows)
    heads_read = HEADS + 2 * KV_HEADS if rotates else HEADS
    cached = 2 * keys * KV_HEADS * head_nbytes(HEAD_DIM, kv_dtype)
    assert found.nbytes == cached + len(rows) * (heads_read + HEADS) * HEAD_DIM * 4
    assert found.flops == 4 * keys * HEADS * HEAD_DIM
    assert found.detail == (f"window {window}" if window else "")


@pytest.mark.parametrize("window", [0, 1, 16, 40])
def test_prompts_read_the_keys_of_all_their_queries_once_and_compute_each_pair(window: int) -> None:
    queries, contexts = [20, 1, 33, 12], [20, 50, 50, 17]
    tiles = [0, 0, 0, 16, 2, 0, 2, 16, 2, 32, 3, 0]
    frame, (tile_place, query_len, context_len) = frame_of(tiles, queries, contexts)
    found = work(
        "attention_prefill_f16_halves",
        (len(tiles) // 2, 4, 1),
        frame,
        tiles=tile_place,
        query_len=query_len,
        context_len=context_len,
        window=window,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
    )
    seen, pairs, rows = 0, 0, 0
    for row in (0, 2, 3):
        positions = range(contexts[row] - queries[row], contexts[row])
        views = [set(range(max(0, position + 1 - window) if window else 0, position + 1)) for position in positions]
        seen, pairs = seen + len(set.union(*views)), pairs + sum(map(len, views))
        rows += queries[row]
    columns = HEADS * HEAD_DIM
    assert found.flops == 4 * pairs * columns
    assert found.nbytes == 2 * seen * KV_HEADS * HEAD_DIM * 2 + rows * (columns * 4 + columns * 2 + 4)


@pytest.mark.parametrize(
    ("name", "groups", "fields", "nbytes"),
    [
        ("rms_norm_floats", (3, 1, 1), {"columns": 16, "weight": 1}, 3 * 64 * 8 + 64 * 4),
        ("rms_norm_blocks", (3, 1, 1), {"columns": 16, "weight": 1, "hidden": 1}, 3 * 64 * 12 + 3 * 80 + 64 * 4),
        (
            "rms_norm_halves",  # of chosen rows: the residual stream stays as it is
            (3, 1, 1),
            {"columns": 16, "weight": 1, "post_weight": 1, "hidden": 1, "rows": 1},
            3 * 64 * 8 + 3 * (64 * 2 + 4) + 2 * 64 * 4,
        ),
        ("rms_norm_floats", (3, 1, 1), {"columns": 16, "hidden": 1}, 3 * 64 * 12),  # an addition alone
        ("gated_floats", (2, 5, 1), {"columns": 16}, 5 * 64 * 12),
        ("gated_blocks", (2, 5, 1), {"columns": 16}, 5 * (64 * 8 + 80)),
        ("row_to_half_fragments", (5, 1, 1), {"columns": 32}, 5 * (128 * 6 + 4)),
        ("quantize_activations", (9, 1, 1), {"rows": 5, "blocks": 4}, 5 * (128 * 4 + 160)),
        (
            "rope_cache_f16",
            (12, 5, 1),
            {"num_heads": HEADS, "num_kv_heads": KV_HEADS},
            5 * HEAD_DIM * (12 * 4 + 8 * 4 + 4 * 2),
        ),
        ("embed_bf16", (1, 5, 1), {"columns": 8}, 5 * 64 * 6),
        ("embed_quant_q8", (1, 5, 1), {"blocks": 2}, 5 * (64 + 2 * 2 + 64 * 4)),
        ("sample_argmax", (9, 5, 1), {"vocab": 1000}, 5 * 4000),
        ("sample_stats", (9, 5, 1), {"vocab": 1000}, 5 * 4000),
        ("sample_pick", (5, 1, 1), {}, 0),
        ("touch_pages", (5, 1, 1), {}, 0),
    ],
)
def test_other_kernels_read_and_write_their_rows(
    name: str, groups: tuple[int, int, int], fields: dict[str, int], nbytes: int
) -> None:
    assert work(name, groups, **fields) == DispatchWork("", nbytes, 0)


async def test_an_engine_s_attention_is_counted_by_the_contexts_of_its_steps(open_engine: OpenEngine) -> None:
    num_prompt, num_tokens = 40, 9
    async with open_engine("gemma3", time_kernels=True) as engine:
        await engine.loaded()
        sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        async for _ in engine.stream(list(range(1, num_prompt + 1)), sampling):
            pass
        model, times = engine.model_spec, engine.kernel_times()
    decode = [time for time in times if time.tokens == 1 and time.kernel.startswith("attention_decode")]
    for window in set(model.layer_windows):
        (found,) = [time for time in decode if time.detail == (f"window {window}" if window else "")]
        contexts = range(num_prompt + 1, num_prompt + num_tokens)
        keys = [min(context, window or context) for context in contexts]
        mean = 4 * sum(keys) * model.num_heads * model.head_dim // len(keys)
        assert found.flops == mean
        assert found.nbytes > sum(keys) // len(keys) * 2 * model.num_kv_heads * model.head_dim * 2
    assert all(time.nbytes for time in times if time.kernel.startswith(("rms_norm", "rope_cache", "gated", "embed")))


@pytest.mark.parametrize(
    ("name", "groups", "nbytes", "pairs"),
    [
        ("expert_vec_bf16", (12, 1, 4), 2 * 48 * 256, 1),
        ("expert_quant_vec_q4", (12, 1, 4), 48 * 8 * 18, 1),
        ("expert_quant_sum_q4_k", (24, 1, 2), 48 * 8 * 18, 1),
        ("expert_coopmat_bf16", (4, 1, 1), 2 * 48 * 256, 32),
        ("expert_quant_coopmat_q4_1", (4, 1, 1), 48 * 8 * 20, 32),
    ],
)
def test_pairs_read_their_experts_alone(name: str, groups: tuple[int, int, int], nbytes: int, pairs: int) -> None:
    sizes = {"blocks": 8} if "quant" in name else {"k": 256}
    found = work(name, groups, n=48, **sizes)
    assert found == DispatchWork("48x256", 4 * nbytes, 4 * pairs * 2 * 48 * 256)
