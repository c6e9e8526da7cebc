"""What a server tells of models that are not loaded."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from unicorn_async.checkpoint.catalog import ModelCatalog
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine import model_facts
from unicorn_async.engine.files import ModelFiles
from unicorn_async.engine.model_facts import FactsReader, ModelFacts
from unicorn_async.engine.model_library import ModelChoice, ModelLibrary
from unicorn_async.errors import ModelNotFoundError, UnsupportedModelError, VulkanUnavailableError
from unicorn_async.gpu.instance import Instance

from .checkpoint_files import write_model
from .test_quantised import quantised_files

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.gpu.device_info import DeviceInfo


@pytest.fixture
def config(device_info: DeviceInfo) -> EngineConfig:
    return EngineConfig(device=str(device_info.index))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model("llama", "bfloat16", tmp_path / "models" / "tiny")
    return tmp_path / "models"


def library_of(folder: Path, config: EngineConfig) -> ModelLibrary:
    return ModelLibrary(ModelCatalog(None, [folder], {"HF_HOME": str(folder / "hub")}), config)


def facts_of(library: ModelLibrary) -> dict[str, ModelFacts]:
    return {model.name: model.facts for model in library.models(60) if model.facts is not None}


def read_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the models whose headers are read from now on."""
    found: list[str] = []
    read = ModelFiles.read

    def counting(model: Path, *args: object, **options: object) -> ModelFiles:
        found.append(model.name)
        return read(model, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelFiles, "read", counting)
    return found


def test_a_models_size_format_types_parameters_and_context_are_told(folder: Path, config: EngineConfig) -> None:
    quantised_files("llama", folder)
    facts = facts_of(library_of(folder, config))
    tiny, blocks = facts["tiny"], facts["blocks.gguf"]
    weights = folder / "tiny" / "model.safetensors"
    assert (tiny.file_bytes, tiny.format, tiny.weight_types) == (weights.stat().st_size, "safetensors", ("BF16",))
    on_disk = json.loads((folder / "tiny" / "config.json").read_text())
    assert (tiny.max_context, tiny.num_layers) == (on_disk["max_position_embeddings"], on_disk["num_hidden_layers"])
    assert tiny.architecture == "LlamaForCausalLM"
    assert tiny.num_parameters is not None
    assert tiny.num_parameters * 2 <= tiny.file_bytes < tiny.num_parameters * 2 + 10_000
    assert (tiny.fits, tiny.problem, tiny.is_quantised) == (True, None, False)
    assert (blocks.format, blocks.weight_types[0], blocks.is_quantised) == ("gguf", "Q8_0", True)


def test_why_a_model_can_not_be_loaded_is_told(folder: Path, config: EngineConfig) -> None:
    shutil.copytree(folder / "tiny", folder / "odd")
    raw = json.loads((folder / "odd" / "config.json").read_text())
    (folder / "odd" / "config.json").write_text(json.dumps({**raw, "architectures": ["OddForCausalLM"]}))
    (folder / "damaged.gguf").write_bytes(b"GGUF" + bytes(20))
    facts = facts_of(library_of(folder, config))
    assert "OddForCausalLM" in (facts["odd"].problem or "")
    assert facts["odd"].file_bytes > 0
    assert facts["damaged.gguf"].problem
    small = facts_of(library_of(folder, replace(config, vram_bytes=1000)))
    assert small["tiny"].fits is False
    assert "bytes of memory are missing" in (small["tiny"].problem or "")
    assert small["tiny"].num_parameters


def test_without_vulkan_the_list_says_so_for_each_model(
    folder: Path, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise VulkanUnavailableError("no Vulkan loader")

    monkeypatch.setattr(model_facts, "empty_devices", fail)
    facts = facts_of(library_of(folder, config))["tiny"]
    assert (facts.fits, facts.problem) == (None, "no Vulkan loader")
    assert facts.weight_types == ("BF16",)


def test_devices_that_could_not_be_used_are_asked_for_again(
    folder: Path, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise VulkanUnavailableError("no Vulkan loader")

    library = library_of(folder, config)
    monkeypatch.setattr(model_facts, "DEVICES_AGAIN_S", 0.0)
    with monkeypatch.context() as without_vulkan:
        without_vulkan.setattr(model_facts, "empty_devices", fail)
        assert facts_of(library)["tiny"].problem == "no Vulkan loader"
    facts = facts_of(library)["tiny"]
    assert (facts.fits, facts.problem) == (True, None)


def test_headers_are_read_again_where_the_file_changed_alone(
    folder: Path, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, read = library_of(folder, config), read_paths(monkeypatch)
    facts_of(library)
    assert sorted(read) == ["model", "tiny"]  # the bundled one's folder, and the one below
    facts_of(library)
    assert len(read) == 2
    weights = folder / "tiny" / "model.safetensors"
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1_000_000_000))
    facts_of(library)
    assert read[2:] == ["tiny"]


def test_a_listing_without_time_names_the_models_and_reads_nothing(
    folder: Path, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, read = library_of(folder, config), read_paths(monkeypatch)
    assert [(model.name, model.facts) for model in library.models(0)] == [("unicorn-demo", None), ("tiny", None)]
    assert read == []
    assert len(facts_of(library)) == 2
    assert all(model.facts is not None for model in library.models(0))


def test_what_is_kept_of_models_is_bounded(folder: Path, config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_facts, "MAX_KEPT", 1)
    reader = FactsReader()
    for name in ("tiny", "other"):
        if name == "other":
            shutil.copytree(folder / "tiny", folder / name)
        reader.read(folder / name, config)
    assert reader.kept(folder / "tiny", config) is None
    assert reader.kept(folder / "other", config) is not None


def test_devices_are_asked_for_once(folder: Path, config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    created = 0
    create = Instance.create

    def counting(*, validation: bool = False) -> Instance:
        nonlocal created
        created += 1
        return create(validation=validation)

    monkeypatch.setattr(Instance, "create", counting)
    library = library_of(folder, config)
    facts_of(library)
    library.placement(ModelChoice("tiny"))
    library.placement(ModelChoice("tiny", weights=WeightScheme.INT8))
    assert created == 1


def test_a_placement_is_that_of_the_options_asked_for(folder: Path, config: EngineConfig) -> None:
    library = library_of(folder, config)
    plain = library.placement(ModelChoice("tiny", max_context=128))
    small = library.placement(ModelChoice("tiny", max_context=128, weights=WeightScheme.INT8))
    assert (plain.weights, small.weights) == (WeightScheme.AUTO, WeightScheme.INT8)
    sizes = []
    for planned in (plain, small):
        (device,) = planned.devices
        assert device.plan is not None
        told = device.to_json()
        rows = told["placement"]
        assert isinstance(rows, list)
        assert told["max_context"] == 128
        assert {row["group"] for row in rows} >= {"attention", "FFN", "KV cache", "workspace"}
        sizes.append(next(row["bytes"] for row in rows if row["group"] == "FFN"))
    assert sizes[1] < sizes[0]


def test_what_does_not_fit_is_told_by_a_placement_and_what_is_not_there_is_refused(
    folder: Path, config: EngineConfig
) -> None:
    (device,) = library_of(folder, replace(config, vram_bytes=1000)).placement(ModelChoice("tiny")).devices
    assert device.plan is None
    assert "bytes of memory are missing" in (device.problem or "")
    with pytest.raises(ModelNotFoundError):
        library_of(folder, config).placement(ModelChoice("../tiny"))
    quantised_files("llama", folder)
    with pytest.raises(UnsupportedModelError, match="quantised as Q8_0 already"):
        library_of(folder, config).placement(ModelChoice("blocks.gguf", weights=WeightScheme.INT4))
