"""From a client's choice to what an engine is opened with."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.checkpoint.partial_files import Coming
from unicorn_async.checkpoint.catalog import CatalogEntry, ModelCatalog, given_entry
from unicorn_async.checkpoint.coming_model import ComingModel
from unicorn_async.checkpoint.partial_file import ModelDownload
from unicorn_async.config import AttentionKind, AttentionTarget, EngineConfig, WeightScheme
from unicorn_async.engine.model_library import AdapterChoice, ListedModel, ModelChoice, ModelLibrary
from unicorn_async.errors import (
    CheckpointError,
    ConfigError,
    DownloadError,
    ModelNotFoundError,
    NpuUnavailableError,
    OutOfMemoryError,
    UnsupportedModelError,
)
from unicorn_async.lora_spec import LoraSpec
from unicorn_async.npu import choice as npu_choice
from unicorn_async.npu.host import NpuHost
from unicorn_async.resources import demo_model_dir

from .test_quantised import quantised_files

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.gpu.device_info import DeviceInfo

    from .conftest import WriteModel


@pytest.fixture
def config(device_info: DeviceInfo) -> EngineConfig:
    return EngineConfig(device=str(device_info.index))


@pytest.fixture
def catalog(model_directory: WriteModel, tmp_path: Path) -> ModelCatalog:
    llama = model_directory("llama")
    adapter = llama.parent / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / "adapter_config.json").write_text("{}")
    return ModelCatalog(given_entry(llama), [llama.parent], {"HF_HOME": str(tmp_path)})


def test_what_a_choice_leaves_open_is_as_the_server_was_started(catalog: ModelCatalog, config: EngineConfig) -> None:
    started = replace(config, weights=WeightScheme.INT8, max_context=100, model_name="mine")
    library = ModelLibrary(catalog, started)
    prepared = library.prepare(ModelChoice("demo"))
    assert (prepared.name, prepared.location) == ("unicorn-demo", "demo")
    assert prepared.config == replace(started, model_name="unicorn-demo")
    chosen = library.prepare(ModelChoice("demo", weights=WeightScheme.AUTO, max_context=64)).config
    assert (chosen.weights, chosen.max_context) == (WeightScheme.AUTO, 64)


def test_a_default_scheme_gives_way_where_weights_are_quantised_already(config: EngineConfig, tmp_path: Path) -> None:
    quantised_files("llama", tmp_path)
    catalog = ModelCatalog(None, [tmp_path], {"HF_HOME": str(tmp_path)})
    library = ModelLibrary(catalog, replace(config, weights=WeightScheme.INT4))
    assert library.prepare(ModelChoice("blocks.gguf")).config.weights is WeightScheme.AUTO
    assert library.prepare(ModelChoice("plain.gguf")).config.weights is WeightScheme.INT4
    assert library.prepare(ModelChoice("blocks.gguf", weights=WeightScheme.AUTO)).name == "blocks.gguf"
    with pytest.raises(UnsupportedModelError, match="quantised as Q8_0 already"):
        library.prepare(ModelChoice("blocks.gguf", weights=WeightScheme.INT4))


def coming_of(download: ModelDownload) -> ComingModel:
    """The same, which can be opened."""
    coming = ComingModel(download.name)
    coming.begin(download)
    return coming


def test_a_model_that_is_on_its_way_can_be_chosen_and_is_not_looked_for(
    model_directory: WriteModel, config: EngineConfig, tmp_path: Path
) -> None:
    shutil.copytree(model_directory("llama"), tmp_path / "tiny")
    file = Coming.of(tmp_path / "tiny" / "model.safetensors", 20_000)
    download = ModelDownload("org/tiny", tmp_path / "tiny", {file.path: file.file})
    catalog = ModelCatalog(CatalogEntry("mine", "org/tiny"), [], {"HF_HOME": str(tmp_path)})
    library = ModelLibrary(catalog, config, coming=coming_of(download))
    assert ListedModel("mine") in library.models(10.0)
    assert library.prepare(ModelChoice("mine")).location == "org/tiny"
    assert library.placement(ModelChoice("mine")).bytes_to_read > 20_000
    file.file.fail(DownloadError("no more"))
    with pytest.raises(DownloadError, match=r"^no more$"):
        library.prepare(ModelChoice("mine"))


def test_of_a_model_whose_download_has_only_begun_nothing_is_known(config: EngineConfig, tmp_path: Path) -> None:
    catalog = ModelCatalog(CatalogEntry("mine", "org/tiny"), [], {"HF_HOME": str(tmp_path)})
    coming = ComingModel("org/tiny")
    library = ModelLibrary(catalog, config, coming=coming)
    with pytest.raises(DownloadError, match=r"org/tiny: its download has only begun"):
        library.placement(ModelChoice("mine"))
    assert ListedModel("mine") in library.models(10.0)
    coming.fail(DownloadError("no such repository"))
    assert ListedModel("mine", problem="no such repository") in library.models(10.0)


def test_a_model_whose_download_failed_can_be_chosen_once_another_process_has_brought_it(
    model_directory: WriteModel, config: EngineConfig, tmp_path: Path
) -> None:
    shutil.copytree(model_directory("llama"), tmp_path / "tiny")
    content = (tmp_path / "tiny" / "model.safetensors").read_bytes()
    file = Coming.of(tmp_path / "tiny" / "model.safetensors", 20_000)
    download = ModelDownload("org/tiny", tmp_path / "tiny", {file.path: file.file})
    library = ModelLibrary(ModelCatalog(CatalogEntry("mine", "org/tiny")), config, coming=coming_of(download))
    file.file.fail(DownloadError("no more"))
    file.path.write_bytes(content)
    assert library.prepare(ModelChoice("mine")).location == "org/tiny"


def test_a_load_of_a_model_whose_download_has_failed_begins_that_anew(
    model_directory: WriteModel, config: EngineConfig, tmp_path: Path
) -> None:
    shutil.copytree(model_directory("llama"), tmp_path / "tiny")
    file = Coming.of(tmp_path / "tiny" / "model.safetensors", 20_000)
    coming = ComingModel("org/tiny")
    then = [ComingModel("org/tiny"), coming_of(ModelDownload("org/tiny", tmp_path / "tiny", {file.path: file.file}))]
    catalog = ModelCatalog(CatalogEntry("mine", "org/tiny"), [], {"HF_HOME": str(tmp_path)})
    library = ModelLibrary(catalog, config, coming=coming, again=lambda: then.pop(0))
    coming.fail(DownloadError("no such repository"))
    begun = then[0]
    for _ in range(2):  # the second one finds that it has begun
        assert library.prepare(ModelChoice("mine")).unchecked == ModelChoice("mine")
    begun.fail(DownloadError("no network"))
    assert library.prepare(ModelChoice("mine")).unchecked is None and not then
    assert library.prepare(ModelChoice("mine")).location == "org/tiny"


async def test_a_load_that_waits_for_a_download_ends_as_that_does(config: EngineConfig, tmp_path: Path) -> None:
    coming, then = ComingModel("org/tiny"), [ComingModel("org/tiny")]
    catalog = ModelCatalog(CatalogEntry("mine", "org/tiny"), [], {"HF_HOME": str(tmp_path)})
    library = ModelLibrary(catalog, config, coming=coming, again=lambda: then.pop(0))
    model, waited = library.prepare(ModelChoice("mine")), asyncio.Event()

    async def opened() -> None:
        async with library.open(model, lambda *_: waited.set()):
            raise AssertionError("there is no such model")

    opening = asyncio.create_task(opened())
    await waited.wait()
    coming.fail(DownloadError("no such repository"))
    with pytest.raises(DownloadError, match="no such repository"):
        await opening
    assert then  # which the next load has begin


def test_a_model_that_the_npu_can_not_attend_for_is_refused(
    catalog: ModelCatalog, config: EngineConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(npu_choice, "NpuHost", lambda: NpuHost(root=tmp_path))
    library = ModelLibrary(catalog, replace(config, attention=AttentionTarget(AttentionKind.NPU)))
    with pytest.raises(UnsupportedModelError, match="attention on the NPU: head_dim"):
        library.prepare(ModelChoice("llama-bfloat16"))
    with pytest.raises(NpuUnavailableError, match="no NPU of AMD on the PCI bus"):
        library.prepare(ModelChoice("demo"))


def test_adapters_belong_to_the_first_load_of_the_given_model(
    catalog: ModelCatalog, config: EngineConfig, tmp_path: Path
) -> None:
    lora = LoraSpec(tmp_path)
    library = ModelLibrary(catalog, replace(config, loras=(lora,), draft="small"))
    given = library.given()
    assert given is not None
    assert (given.config.loras, given.config.draft) == ((lora,), "small")
    chosen = library.prepare(ModelChoice("demo")).config
    assert (chosen.loras, chosen.draft) == ((), None)


async def test_a_model_that_is_chosen_before_anything_is_known_of_it_is_checked_when_it_is_opened(
    model_directory: WriteModel, config: EngineConfig, tmp_path: Path
) -> None:
    shutil.copytree(model_directory("llama"), tmp_path / "tiny")
    catalog = ModelCatalog(CatalogEntry("mine", "org/tiny"), [], {"HF_HOME": str(tmp_path)})
    coming = ComingModel("org/tiny")
    library = ModelLibrary(catalog, config, coming=coming)
    chosen = library.prepare(ModelChoice("mine"))
    assert chosen == library.given(), "a load that is like the first joins it"
    with pytest.raises(ModelNotFoundError):
        library.prepare(ModelChoice("theirs"))
    with pytest.raises(ConfigError, match="not among those"):
        library.prepare(ModelChoice("mine", loras=(AdapterChoice("../x"),)))
    too_long = library.prepare(ModelChoice("mine", max_context=10_000_000))
    waits: list[str] = []
    opening = asyncio.create_task(library.open(too_long, waits.append).__aenter__())
    coming.begin(ModelDownload("org/tiny", tmp_path / "tiny", {}))
    with pytest.raises(ConfigError, match="max_context"):
        await opening
    assert set(waits) <= {"download"}


async def test_each_load_replaces_the_trace_of_the_one_before_it(
    catalog: ModelCatalog, config: EngineConfig, cache_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "load.json"
    library = ModelLibrary(catalog, replace(config, load_trace=path, weight_cache=False))
    given = library.given()
    assert given is not None
    for prepare in (lambda: given, lambda: library.prepare(ModelChoice("demo")), lambda: given):
        before = path.read_bytes() if path.exists() else b""
        model = prepare()
        assert before == (path.read_bytes() if path.exists() else b"")
        waits: list[str] = []
        async with library.open(model, waits.append) as engine:
            assert waits == ["files", "device", "memory", "tokenizer"]
            await engine.loaded()
            nbytes = engine.progress.bytes_total
        events = json.loads(path.read_text())["traceEvents"]
        assert sum(event["args"]["bytes"] for event in events if event["ph"] == "X") == nbytes


def test_a_load_whose_trace_can_not_be_written_is_refused(
    catalog: ModelCatalog, config: EngineConfig, tmp_path: Path
) -> None:
    library = ModelLibrary(catalog, replace(config, load_trace=tmp_path / "gone" / "load.json"))
    with pytest.raises(ConfigError, match=r"load trace .*load.json: No such file") as caught:
        library.prepare(ModelChoice("demo"))
    assert str(tmp_path) not in library.public_text(str(caught.value))


def test_what_can_not_work_is_refused_before_anything_is_opened(catalog: ModelCatalog, config: EngineConfig) -> None:
    library = ModelLibrary(catalog, config)
    with pytest.raises(ModelNotFoundError):
        library.prepare(ModelChoice("/etc"))
    with pytest.raises(ConfigError, match="not among those"):
        library.prepare(ModelChoice("demo", loras=(AdapterChoice("../x"),)))
    with pytest.raises(ConfigError, match="adapter"):
        library.prepare(ModelChoice("demo", loras=(AdapterChoice("adapter"),)))
    with pytest.raises(ConfigError, match="max_context"):
        library.prepare(ModelChoice("demo", max_context=10_000_000))
    with pytest.raises(OutOfMemoryError):
        ModelLibrary(catalog, replace(config, vram_bytes=1000)).prepare(ModelChoice("demo"))
    with pytest.raises(ConfigError, match="no device"):
        ModelLibrary(catalog, replace(config, device="voodoo")).prepare(ModelChoice("demo"))
    with pytest.raises(ConfigError, match="no device"):
        elsewhere = replace(config, attention=AttentionTarget.parse("vulkan:voodoo"))
        ModelLibrary(catalog, elsewhere).prepare(ModelChoice("demo"))


def test_every_name_of_the_library_can_be_prepared(catalog: ModelCatalog, config: EngineConfig) -> None:
    library = ModelLibrary(catalog, config)
    names = [model.name for model in library.models(0)]
    assert names[:2] == [catalog.given.name if catalog.given else "", "unicorn-demo"]
    for name in names:
        assert library.prepare(ModelChoice(name)).config.model_name == name


def test_a_damaged_model_is_told_to_clients_without_the_folders_it_lies_in(
    config: EngineConfig, tmp_path: Path
) -> None:
    folder = tmp_path / "secret place" / "all models"
    for name in ("a model", "given"):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_bytes((demo_model_dir() / "config.json").read_bytes())
        (folder / name / "model.safetensors").write_bytes(bytes(16))
    catalog = ModelCatalog(given_entry(folder / "given", "mine"), [folder], {"HF_HOME": str(tmp_path)})
    library = ModelLibrary(catalog, config)
    for name in ("a model", "mine"):
        with pytest.raises(CheckpointError) as caught:
            library.prepare(ModelChoice(name))
        assert str(tmp_path) in str(caught.value)
        public = library.public_text(str(caught.value))
        assert public.startswith(f"{name}/")
        assert "secret" not in public
        assert "all models" not in public
