"""Logits of the golden checkpoints against those that transformers computed in float32."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.golden.cases import CASES, FIRST_CASES
from tests.golden.checkpoints import Golden, golden
from unicorn_async.config import KVDType, WeightScheme
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.memory import plan
from unicorn_async.ops.subgroups import matrix_subgroup_size
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tests.engine.conftest import OpenEngine
    from unicorn_async.engine.engine import Engine

TOLERANCE = {"float16": 1e-2, "float32": 1e-2, "bfloat16": 3e-2}  # in standard deviations of the logits
MORE_MODELS = pytest.mark.whole("a cache in int8 behind biases and norms of heads")
INT8_CACHE_TOLERANCE = 0.15  # a cache of int8 had 0.083 at most
# What a type changes, the first ones show; blocks of MXFP4 are multiplied by what became int8.
FAMILY_CASES = [name for name in CASES if name not in FIRST_CASES and name != "gpt_oss"]
REFERENCES = sorted({case.reference for case in CASES.values()})


@pytest.fixture(autouse=True)
def logits_of_whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a step compute the logits of all its tokens, where 64 are the most: else no step would be longer."""
    monkeypatch.setattr(plan, "EVALUATION_ROWS", 128)


@pytest.mark.parametrize("name", REFERENCES)
def test_every_mistake_that_a_reference_knows_of_exceeds_the_tolerance_by_far(name: str) -> None:
    reference = golden(name)
    assert [len(prompt) for prompt in reference.prompts] == [1, 7, 64, 300]
    assert reference.sensitivity
    for mistake, change in reference.sensitivity.items():
        assert change > 10 * max(TOLERANCE.values()), mistake


@pytest.mark.combinations("every type of weights in every model")
@pytest.mark.parametrize(("name", "dtype"), [*product(FIRST_CASES, TOLERANCE), *product(FAMILY_CASES, ["float16"])])
async def test_logits_agree_with_the_reference(name: str, dtype: str, open_engine: OpenEngine) -> None:
    """One by one while the model loads, then chunked and mixed in the same steps."""
    reference = golden(name)
    async with open_engine(name, dtype) as engine:
        alone = [await engine.logits(prompt) for prompt in reference.prompts]
        await check_mixed(engine, reference, TOLERANCE[dtype])
    for index, logits in enumerate(alone):
        assert logits.shape == (len(reference.prompts[index]), 512)
        assert logits.dtype == np.float32
        assert np.isfinite(logits).all()
        assert reference.error(index, logits) <= TOLERANCE[dtype]


@pytest.mark.parametrize(
    "name", ["cohere2", "deepseek_v2", "gemma4", "gemma4_small", "lfm3", "ministral3", "olmo3", "phi4_mini"]
)
async def test_tokens_one_by_one_are_as_likely_as_in_a_prompt(name: str, open_engine: OpenEngine) -> None:
    """Whichever kernel rotates: parts of heads, amplitudes, queries that grow, values that are normed keys, gates."""
    prompt = golden(name).prompts[2]
    async with open_engine(name, "float16") as engine:
        params = SamplingParams(max_tokens=40, ignore_eos=True, top_logprobs=0)
        tokens = [token async for token in engine.stream(prompt, params)]
        logits = await engine.logits([*prompt, *(token.id for token in tokens)])
    for token, row in zip(tokens, logits[len(prompt) - 1 :], strict=False):
        shifted = row.astype(np.float64) - row.max()
        assert token.logprob == pytest.approx(shifted[token.id] - np.log(np.exp(shifted).sum()), abs=5e-3)


async def test_short_contexts_have_the_short_factors(open_engine: OpenEngine) -> None:
    reference = golden("phi4_mini")
    async with open_engine("phi4_mini", "float16", max_context=64) as engine:
        assert reference.error(0, await engine.logits(reference.prompts[0])) <= TOLERANCE["float16"]
        assert reference.error(2, await engine.logits(reference.prompts[2])) > 1.0


@pytest.mark.parametrize("dtype", TOLERANCE)
async def test_a_cache_in_float32_agrees_with_the_reference(dtype: str, open_engine: OpenEngine) -> None:
    async with open_engine("gemma3", dtype, kv_dtype=KVDType.F32) as engine:
        await check_mixed(engine, golden("gemma3"), TOLERANCE[dtype])
        assert "attention_decode_f32_floats" in engine.kernels
        assert "attention_decode_f16_floats" not in engine.kernels


@pytest.mark.parametrize("name", ["mistral", *(pytest.param(name, marks=MORE_MODELS) for name in ("qwen2", "qwen3"))])
async def test_a_cache_in_int8_stays_near_the_reference(name: str, open_engine: OpenEngine) -> None:
    async with open_engine(name, "float16") as engine:
        halves = engine.kv_cache_bytes
    async with open_engine(name, "float16", kv_dtype=KVDType.INT8) as engine:
        reference = golden(name)
        alone = [await engine.logits(prompt) for prompt in reference.prompts]
        await check_mixed(engine, reference, INT8_CACHE_TOLERANCE)
        assert any(kernel.startswith("attention_decode_int8") for kernel in engine.kernels)
        assert engine.kv_cache_bytes * 32 == halves * 17
    errors = [reference.error(index, logits) for index, logits in enumerate(alone)]
    assert TOLERANCE["float16"] < max(errors) <= INT8_CACHE_TOLERANCE


@pytest.mark.parametrize("weights", [WeightScheme.INT8, WeightScheme.INT4])
async def test_latents_take_a_cache_in_int8_beside_weights_that_become_quantised(
    weights: WeightScheme, open_engine: OpenEngine
) -> None:
    reference = golden("glm4_moe_lite")
    async with open_engine("glm4_moe_lite", "bfloat16", kv_dtype=KVDType.INT8, weights=weights) as engine:
        logits = await engine.logits(reference.prompts[2])
        kernels = set(engine.kernels)
    errors = np.abs(logits[:, reference.vocabulary] - reference.logits[2]).max(axis=1) / reference.deviation
    assert np.median(errors) < (0.1 if weights is WeightScheme.INT8 else 0.6)  # a few tokens take other experts
    assert {"latent_keys_int8", "attention_decode_int8_floats"} <= kernels
    assert {"expert_vec_bf16", "expert_coopmat_bf16"} & kernels


async def test_a_cache_in_int8_is_refused_for_heads_that_have_no_whole_blocks(open_engine: OpenEngine) -> None:
    with pytest.raises(UnsupportedModelError, match="int8 takes a multiple of 64, got 32"):
        async with open_engine("llama", kv_dtype=KVDType.INT8):
            pass


@pytest.mark.parametrize(("dtype", "suffix"), [("float16", "f16"), ("bfloat16", "bf16"), ("float32", "f32")])
async def test_the_kernels_of_the_checkpoint_s_type_ran(dtype: str, suffix: str, open_engine: OpenEngine) -> None:
    async with open_engine("llama", dtype) as engine:
        await engine.logits(golden("llama").prompts[3])
        await engine.loaded()
        kernels = set(engine.kernels)
        linears = {name for name in kernels if name.startswith("linear_")}
        assert {name.split("_")[-1] for name in linears} & {"f16", "bf16", "f32"} == {suffix}
        attends_by_matrices = matrix_subgroup_size(engine.device) is not None
        has_matrices = attends_by_matrices and suffix != "f32"
        assert (f"linear_many_coopmat_{suffix}" in kernels) == has_matrices
        has_many = not has_matrices and not engine.device.is_software and suffix != "f32"  # few rows: lanes share them
        assert (f"linear_many_{suffix}" in kernels) == has_many
    form = "halves" if has_matrices else "floats"
    prefill = f"attention_prefill_coopmat_f16_{form}" if attends_by_matrices else f"attention_prefill_f16_{form}"
    assert {f"embed_{suffix}", f"rms_norm_{form}", f"gated_{form}", "rope_cache_f16", prefill} <= kernels


async def test_a_step_has_logits_of_more_than_64_tokens_here(open_engine: OpenEngine) -> None:
    reference = golden("llama")
    async with open_engine("llama") as engine:
        await engine.logits(reference.prompts[3])  # behind the load
        steps = engine.stats().steps
        await engine.logits(reference.prompts[3])
        assert engine.stats().steps - steps <= -(-len(reference.prompts[3]) // 128)


async def check_mixed(engine: Engine, reference: Golden, tolerance: float) -> None:
    """Evaluate all prompts at once: the longest is chunked, and steps hold several of them."""
    steps = engine.stats().steps
    found = await asyncio.gather(*(engine.logits(prompt) for prompt in reference.prompts))
    limit = engine.config.max_num_batched_tokens
    assert engine.stats().steps - steps < sum(-(-len(prompt) // limit) for prompt in reference.prompts) + 4
    for index, logits in enumerate(found):
        assert reference.error(index, logits) <= tolerance
