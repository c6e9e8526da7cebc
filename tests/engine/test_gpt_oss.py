"""gpt-oss as it is published, in blocks of MXFP4, as GGUF files have it, and quantised while it loads.

That its logits are the reference's where nothing is rounded to blocks is for test_gguf.py, which has the file in F16.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.checkpoint.gguf.family_files import write_family
from tests.golden.checkpoints import encode, golden, safetensors_bytes, weights
from tests.golden.gpt_oss import GPT_OSS
from unicorn_async.cli.tensor_rows import tensor_rows
from unicorn_async.config import KVDType, WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.sampling_params import SamplingParams

from .checkpoint_files import write_model

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tests.engine.conftest import OpenEngine
    from unicorn_async.engine.engine import Engine

PROMPTS = (0, 1, 2)


async def all_logits(engine: Engine) -> list[NDArray[np.float32]]:
    return [await engine.logits(golden("gpt_oss").prompts[index]) for index in PROMPTS]


def errors(found: list[NDArray[np.float32]]) -> NDArray[np.float64]:
    """The largest error of each token, in deviations."""
    reference = golden("gpt_oss")
    parts = zip(found, reference.logits, strict=False)
    return np.concatenate([np.abs(a[:, reference.vocabulary] - b).max(axis=1) for a, b in parts]) / reference.deviation


async def test_what_is_published_is_near_the_reference_and_what_a_file_has_of_it(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Activations that blocks are multiplied by become int8, which is most of the error."""
    async with open_engine("gpt_oss", "float16") as engine:
        published = await all_logits(engine)
        await engine.loaded()
        wanted = {"relayout_mxfp4_codes", "relayout_mxfp4_scales", "expert_quant_vec_mxfp4", "expert_quant_sum_mxfp4"}
        assert wanted <= set(engine.kernels)
    found = errors(published)
    assert np.median(found) <= 0.03 and found.max() <= 0.06
    path = write_family(tmp_path / "blocks.gguf", "gpt_oss", ("_exps.weight",), kind="MXFP4")
    async with open_engine(path, skip_tokenizer=True) as engine:
        for own, other in zip(await all_logits(engine), published, strict=True):
            np.testing.assert_array_equal(own, other)


async def test_tokens_one_by_one_are_as_likely_as_in_a_prompt(open_engine: OpenEngine) -> None:
    """Whichever kernels take sinks and windows, with a cache of halves and one of int8."""
    prompt, params = golden("gpt_oss").prompts[2], SamplingParams(max_tokens=30, ignore_eos=True, top_logprobs=0)
    for kv_dtype, most in ((KVDType.F16, 0.02), (KVDType.INT8, 0.05)):
        async with open_engine("gpt_oss", "float16", kv_dtype=kv_dtype) as engine:
            tokens = [token async for token in engine.stream(prompt, params)]
            logits = await engine.logits([*prompt, *(token.id for token in tokens)])
        away = []
        for token, row in zip(tokens, logits[len(prompt) - 1 :], strict=False):
            shifted = row.astype(np.float64) - row.max()
            away.append(abs(token.logprob - shifted[token.id] + np.log(np.exp(shifted).sum())))
        assert np.median(away) <= most


async def test_experts_of_a_dense_file_are_quantised_while_they_load(tmp_path: Path, open_engine: OpenEngine) -> None:
    path = write_family(tmp_path / "dense.gguf", "gpt_oss")
    async with open_engine(path, skip_tokenizer=True, weights=WeightScheme.INT4) as engine:
        found = errors(await all_logits(engine))
        await engine.loaded()
        assert "expert_quant_vec_q4" in engine.kernels
    assert np.median(found) <= 0.7


def write_dense(directory: Path, dtype: str) -> Path:
    """The model as transformers saves it, whose experts have rows for columns."""
    model = write_model("gpt_oss", dtype, directory)
    config = json.loads((model / "config.json").read_text())
    config.pop("quantization_config", None)
    (model / "config.json").write_text(json.dumps(config))
    tensors = [(name, *encode(value, dtype)) for name, value in weights(GPT_OSS)]
    (model / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return model


@pytest.mark.parametrize(("dtype", "most"), [("float16", 1e-2), ("bfloat16", 3e-2), ("float32", 1e-2)])
async def test_dense_experts_of_a_directory_change_rows_and_columns_while_they_load(
    tmp_path: Path, open_engine: OpenEngine, dtype: str, most: float
) -> None:
    async with open_engine(write_dense(tmp_path / "dense", dtype)) as engine:
        assert errors(await all_logits(engine)).max() <= most
        assert f"transpose_{32 if dtype == 'float32' else 16}" in engine.kernels


def test_dense_experts_of_a_directory_can_not_become_anything_else(tmp_path: Path) -> None:
    model = write_dense(tmp_path / "dense", "bfloat16")
    rows = {row.name: row for row in tensor_rows(ModelFiles.read(model))}
    assert rows["model.layers.0.mlp.experts.down_proj"].transform == "copied, rows reordered"
    for scheme in (WeightScheme.F16, WeightScheme.INT4):
        with pytest.raises(UnsupportedModelError, match=rf"rows for columns in the file, .* become {scheme.value}"):
            ModelFiles.read(model, scheme)
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(config.replace('"intermediate_size": 64', '"intermediate_size": 32'))
    with pytest.raises(CheckpointError, match=r"asks for shape \[6, 64\], the file has \[6, 128\]"):
        ModelFiles.read(model)


def test_blocks_are_not_quantised_again(tmp_path: Path) -> None:
    model = write_model("gpt_oss", "float16", tmp_path / "blocks")
    rows = {row.name.rpartition(".")[2]: row for row in tensor_rows(ModelFiles.read(model))}
    down = rows["down_proj_blocks"]
    assert (down.shape, down.nbytes) == ((6, 96, 64), 6 * 96 * (32 + 2))
    assert down.transform == "re-layout of 4.25 bits a weight to 4.5"
    with pytest.raises(UnsupportedModelError, match="is quantised as MXFP4 already"):
        ModelFiles.read(model, WeightScheme.INT4)
    assert ModelFiles.read(model, WeightScheme.INT4, is_default=True).scheme is WeightScheme.AUTO
