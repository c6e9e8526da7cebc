"""Engines with LoRA adapters, against what transformers computed with the adapters merged into the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.checkpoint.gguf.builders import write
from tests.checkpoint.gguf.golden_files import gguf_tensors
from tests.golden.adapters import ATTENTION, BLENDS, AdapterCase, factors, golden_blend, write_adapter
from tests.golden.cases import CASES
from tests.golden.checkpoints import encode, golden, safetensors_bytes, weights
from tests.lora import adapters
from unicorn_async.cache.lookup import CacheState
from unicorn_async.config import WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import CheckpointError, ConfigError, EngineClosedError, UnsupportedModelError
from unicorn_async.lora_spec import LoraSpec

from .checkpoint_files import write_model
from .loading_gate import HELD_FROM, LoadingGate, some_layers
from .test_gguf import metadata
from .test_quantised import quantised_files

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import OpenEngine, WriteModel

    Specs = dict[str, tuple[LoraSpec, ...]]

# In standard deviations of the logits. Blended weights are rounded to the base's type, while those of the plain
# references lie on its grid: transformers' own logits move by 0.053 when its merged weights are rounded to bfloat16. In
# float16 an eighth of that comes to the 1e-2 of plain weights.
TOLERANCE = {"float16": 1.7e-2, "float32": 1e-2, "bfloat16": 8e-2}
QUANTISED = {WeightScheme.INT8: 0.04, WeightScheme.INT4: 0.35}  # root of the mean squared error, as in test_quantised


@pytest.fixture(scope="session")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Specs:
    """The adapters of every blend, on disk."""
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: tuple(LoraSpec(write_adapter(name, case, folder / name / case.name), case.weight) for case in cases)
        for name, cases in BLENDS.items()
    }


@pytest.mark.parametrize("name", BLENDS)
def test_every_mistake_that_a_reference_knows_of_exceeds_the_tolerance_by_far(name: str) -> None:
    reference = golden_blend(name)
    assert reference.sensitivity
    for mistake, change in reference.sensitivity.items():
        assert change > 10 * max(TOLERANCE.values()), mistake


@pytest.mark.combinations("every type of weights in either model")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", BLENDS)
async def test_logits_are_those_of_merged_weights(name: str, dtype: str, open_engine: OpenEngine, specs: Specs) -> None:
    reference = golden_blend(name)
    async with open_engine(name, dtype, loras=specs[name]) as engine:
        found = [await engine.logits(prompt) for prompt in reference.prompts]
        assert "lora_blend" in engine.kernels
        assert [adapter.weight for adapter in engine.adapters] == [spec.weight for spec in specs[name]]
    errors = [reference.error(index, logits) for index, logits in enumerate(found)]
    assert max(errors) <= TOLERANCE[dtype], errors


@pytest.mark.combinations("either scheme in either model")
@pytest.mark.parametrize("scheme", QUANTISED)
@pytest.mark.parametrize("name", BLENDS)
async def test_weights_are_blended_before_they_are_quantised(
    name: str, scheme: WeightScheme, open_engine: OpenEngine, specs: Specs
) -> None:
    reference = golden_blend(name)
    async with open_engine(name, "bfloat16", weights=scheme, loras=specs[name]) as engine:
        for logits, right in zip([await engine.logits(p) for p in reference.prompts], reference.logits, strict=True):
            error = np.sqrt(np.mean((logits[:, reference.vocabulary] - right) ** 2)) / reference.deviation
            assert 1e-3 < error <= QUANTISED[scheme]


async def test_a_gguf_file_s_dense_weights_are_blended_row_by_row_of_the_model(
    tmp_path: Path, open_engine: OpenEngine, specs: Specs
) -> None:
    """Rows of q and k lie in another order in the file."""
    path = write(tmp_path / "llama.gguf", metadata("llama", tmp_path), gguf_tensors("llama", "F16"))
    reference = golden_blend("llama")
    async with open_engine(path, loras=specs["llama"]) as engine:
        for index, prompt in enumerate(reference.prompts):
            assert reference.error(index, await engine.logits(prompt)) <= TOLERANCE["float16"]


ALONE = pytest.mark.whole("rows that are reordered alone, or lie beside experts")


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("phi4_mini", ("qkv_proj", "gate_up_proj")),
        pytest.param("glm4", ("q_proj", "k_proj"), marks=ALONE),
        pytest.param("qwen3_moe", ATTENTION, marks=ALONE),
        ("qwen3_next", ("in_proj_qkvz", "in_proj_ba")),
        ("glm4_moe_lite", ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "shared_experts.down_proj")),
        ("deepseek_v2_lite", ("q_proj", "kv_a_proj_with_mqa")),
        ("granite_hybrid", ("in_proj", "out_proj", "q_proj", "input_linear", "output_linear")),
        ("qwen2_moe", ("v_proj", "shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj")),
    ],
)
async def test_an_adapter_changes_the_rows_that_a_model_fuses_reorders_or_has_beside_experts(
    name: str, targets: tuple[str, ...], tmp_path: Path, open_engine: OpenEngine
) -> None:
    adapter = AdapterCase("one", targets, 8, 16.0, 0.75, "float32")
    spec = LoraSpec(write_adapter(name, adapter, tmp_path / "adapter"), adapter.weight)
    changes = {weight: b @ a for weight, a, b in factors(name, adapter)}
    merged = write_model(name, "float32", tmp_path / "merged")
    tensors = [
        (weight, *encode(value + adapter.scale_of(weight.split(".")[-2]) * changes.get(weight, 0), "float32"))
        for weight, value in weights(CASES[name])
    ]
    (merged / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    reference = golden(name)
    found = []
    for model, loras in ((merged, ()), (name, (spec,)), (name, ())):
        async with open_engine(model, "float32", loras=loras) as engine:
            found.append(await engine.logits(reference.prompts[2]))
    error, change = (np.abs(found[0] - other).max() / reference.deviation for other in found[1:])
    assert error <= TOLERANCE["float32"] < 0.3 < change


async def test_without_adapters_nothing_is_blended(open_engine: OpenEngine) -> None:
    reference = golden("llama")
    async with open_engine("llama", "float16") as engine:
        await engine.loaded()
        assert engine.adapters == ()
        assert "lora_blend" not in engine.kernels
        assert reference.error(1, await engine.logits(reference.prompts[1])) <= TOLERANCE["float16"]


def test_a_model_s_digest_is_its_adapters(model_directory: WriteModel, specs: Specs) -> None:
    directory = model_directory("llama", "float16")
    first, second = specs["llama"]
    digests = [ModelFiles.read(directory, loras=loras).lora_digest for loras in ((), (first,), (first, second))]
    assert digests[0] == ""
    assert len(set(digests)) == 3
    assert ModelFiles.read(directory, loras=(first,)).lora_digest == digests[1]


async def test_blended_weights_come_from_the_cache_for_these_adapters_alone(
    tmp_path: Path, open_engine: OpenEngine, specs: Specs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 too, where nothing is quantised."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, second = specs["llama"]
    prompt = golden_blend("llama").prompts[2]
    found, blended, states = [], [], []
    for loras in ((first, second), (first, second), (second, first)):
        async with open_engine("llama", loras=loras, weight_cache=True) as engine:
            found.append(await engine.logits(prompt))
            states.append((await engine.cache_settled()).state)
            blended.append("lora_blend" in engine.kernels)
    assert blended == [True, False, True]
    assert states == [CacheState.WRITTEN, CacheState.HIT, CacheState.WRITTEN]
    np.testing.assert_array_equal(found[0], found[1])


def test_quantised_weights_are_not_blended(tmp_path: Path, specs: Specs) -> None:
    quantised, _ = quantised_files("llama", tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"is quantised as Q8_0 already, .*: blend before quantising"):
        ModelFiles.read(quantised, loras=specs["llama"])


def test_an_adapter_for_another_model_is_refused(model_directory: WriteModel, specs: Specs) -> None:
    with pytest.raises(UnsupportedModelError, match="neither can be changed alone"):
        ModelFiles.read(model_directory("gemma3"), loras=specs["llama"])
    with pytest.raises(CheckpointError, match=r"change a weight of shape \[128, 96\]; '.*' has \[128, 128\]"):
        ModelFiles.read(model_directory("llama"), loras=specs["gemma3"])


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("qwen3_moe", "up_proj"),
        ("qwen3_moe", "gate"),
        ("mixtral", "w1"),
        ("mixtral", "gate"),
        ("qwen2_moe", "shared_expert_gate"),
    ],
)
def test_adapters_of_experts_and_of_routers_are_refused(
    name: str, module: str, tmp_path: Path, model_directory: WriteModel
) -> None:
    path = write_adapter(name, AdapterCase("one", (module,), 4, 8.0, 1.0, "float32"), tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"': adapters of experts and of their routers are not"):
        ModelFiles.read(model_directory(name), loras=(LoraSpec(path),))


def test_an_adapter_of_what_is_taken_apart_is_refused(tmp_path: Path, model_directory: WriteModel) -> None:
    path = write_adapter("glm4_moe_lite", AdapterCase("one", ("kv_b_proj",), 4, 8.0, 1.0, "float32"), tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"kv_b_proj\.weight', which is taken apart, are not supported"):
        ModelFiles.read(model_directory("glm4_moe_lite"), loras=(LoraSpec(path),))


def test_an_adapter_whose_rows_come_in_groups_that_no_kernel_takes_is_refused(
    tmp_path: Path, model_directory: WriteModel
) -> None:
    path = write_adapter("qwen3_next", AdapterCase("one", ("in_proj_ba",), 1, 8.0, 1.0, "float32"), tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"of rank 1: rows of '.*in_proj_ba\.weight' lie in groups"):
        ModelFiles.read(model_directory("qwen3_next"), loras=(LoraSpec(path),))


async def test_an_adapter_that_is_not_there_fails_the_start(tmp_path: Path, open_engine: OpenEngine) -> None:
    with pytest.raises(ConfigError, match="nothing is downloaded"):
        async with open_engine("llama", loras=(LoraSpec(tmp_path / "none"),)):
            pass


async def test_an_engine_that_is_closed_while_it_blends_frees_everything(
    open_engine: OpenEngine, specs: Specs, monkeypatch: pytest.MonkeyPatch
) -> None:
    LoadingGate(monkeypatch, HELD_FROM)
    async with open_engine("llama", loras=specs["llama"]) as engine:
        memory = engine._model.device.memory
        await some_layers(engine, at_least=1)
        watching = engine.load_progress()
        await anext(watching)
    assert memory.num_buffers == 0
    with pytest.raises(EngineClosedError):
        async for _ in watching:
            pass


async def test_a_value_beyond_f16_fails_the_load_and_the_requests(
    tmp_path: Path, model_directory: WriteModel, open_engine: OpenEngine
) -> None:
    module, huge = "model.layers.1.mlp.down_proj", np.full((1, 192), 3e38, np.float32)
    directory = adapters.write_adapter(
        tmp_path,
        {
            f"{adapters.PREFIX}{module}.lora_A.weight": adapters.stored(huge),
            f"{adapters.PREFIX}{module}.lora_B.weight": adapters.stored(np.ones((128, 1), np.float32)),
        },
        r=1,
        lora_alpha=1,
    )
    message = r"tensor 'model.layers.1.mlp.down_proj.weight', blended with LoRA '.+': 24576 values do not fit F16"
    async with open_engine("llama", "float16", loras=(LoraSpec(directory),)) as engine:
        with pytest.raises(CheckpointError, match=message):
            await engine.logits([2, 3, 4])
