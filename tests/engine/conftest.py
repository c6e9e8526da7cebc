"""Opens engines on golden checkpoints, on the device under test."""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.conftest import VALIDATION, choose
from tests.patience import PATIENCE_S
from unicorn_async.config import EngineConfig
from unicorn_async.engine.engine import Engine
from unicorn_async.gpu.instance import Instance
from unicorn_async.kv_store.disk_tier import DiskTier
from unicorn_async.scheduler.fetch_costs import FetchCosts
from unicorn_async.tokenizer import Tokenizer

from .checkpoint_files import write_model, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from unicorn_async.gpu.device_info import DeviceInfo


class WriteModel(Protocol):
    """Returns the directory of a golden checkpoint, the same at every call."""

    def __call__(self, name: str, dtype: str = ...) -> Path: ...


class OpenEngine(Protocol):
    """Opens an engine on a golden checkpoint, or on a model's directory; it is still loading."""

    def __call__(
        self, model: str | Path = ..., dtype: str = ..., **options: Any
    ) -> AbstractAsyncContextManager[Engine]: ...


@pytest.fixture(scope="session")
def device_info() -> DeviceInfo:
    """The device under test."""
    with Instance.create() as instance:
        return choose(instance)


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> WriteModel:
    """Golden checkpoints, each written when it is first asked for."""
    folder = tmp_path_factory.mktemp("models")

    def write(name: str, dtype: str = "bfloat16") -> Path:
        directory = folder / f"{name}-{dtype}"
        return directory if directory.exists() else write_model(name, dtype, directory)

    return write


@pytest.fixture(scope="session")
def open_engine(device_info: DeviceInfo, model_directory: WriteModel, cache_folder: Path) -> OpenEngine:
    """Opens engines; a message of the validation layers, up to the engine's end, fails the test."""

    @asynccontextmanager
    async def open_one(model: str | Path = "gemma3", dtype: str = "bfloat16", **options: Any) -> AsyncIterator[Engine]:
        directory = model_directory(model, dtype) if isinstance(model, str) else model
        defaults = {"max_context": 512, "max_num_seqs": 8, "max_num_batched_tokens": 128, "weight_cache": False}
        defaults["max_mixed_step_s"] = None  # steps are what the test makes them, whatever this machine's speed
        defaults["speculation"] = "off"  # likewise

        leftovers = options.pop("leftovers", None)
        config = EngineConfig(device=str(device_info.index), validation=VALIDATION, **(defaults | options))
        async with Engine.open(directory, config=config, leftovers=leftovers) as engine:
            yield engine
        assert not engine.validation_messages, "\n\n".join(engine.validation_messages)

    return open_one


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer of 512 tokens, without a model."""
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory, 512)
    return Tokenizer.load(directory)


@pytest.fixture
def at_any_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are kept and come back whatever that costs on this machine, and whatever its disk takes for it."""
    monkeypatch.setattr(FetchCosts, "is_faster", lambda *_: True)
    monkeypatch.setattr(FetchCosts, "disk_pays", lambda *_: True)
    monkeypatch.setattr(FetchCosts, "patience_s", lambda *_: None)
    monkeypatch.setattr(FetchCosts, "pays_to_go_on", lambda *_: True)
    monkeypatch.setattr("unicorn_async.kv_store.store._END_S", PATIENCE_S)
    monkeypatch.setattr("unicorn_async.kv_store.keeper._FLUSH_S", PATIENCE_S)
    monkeypatch.setattr("unicorn_async.kv_store.keeper.DiskTier", partial(DiskTier, patience_s=PATIENCE_S))


@pytest.fixture
def disk(cache_folder: Path) -> Iterator[Path]:
    """The folder of kept blocks, which is empty."""
    yield cache_folder / "unicorn_async" / "kv"
    shutil.rmtree(cache_folder / "unicorn_async" / "kv", ignore_errors=True)
