"""The parts of a start: what runs beside what, and what a start that fails, or ends, has ended before."""

from __future__ import annotations

import asyncio
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.patience import PATIENCE_S
from unicorn_async.config import AttentionKind, AttentionTarget
from unicorn_async.engine import opening
from unicorn_async.engine.engine import Engine
from unicorn_async.engine.files import ModelFiles
from unicorn_async.engine.tokenizer_task import TokenizerTask
from unicorn_async.errors import CheckpointError, UnicornError
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.kernel import KernelLibrary
from unicorn_async.loader.pipeline import LoadPipeline
from unicorn_async.loader.stream import LoadStream
from unicorn_async.step.kernel_list import NeededKernels

from .checkpoint_files import write_tokenizer
from .leftovers import no_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from unicorn_async.engine.tokenizer_task import MadeTokenizer
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import Kernel, KernelRequest

    from .conftest import OpenEngine, WriteModel

NUM_ROWS = 512  # of the checkpoints' embeddings


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with no_leftovers(monkeypatch):
        yield


@pytest.fixture
def too_many_tokens(model_directory: WriteModel, tmp_path: Path) -> Path:
    """A model whose tokenizer has a token for which there is no row."""
    directory = shutil.copytree(model_directory("gemma3"), tmp_path / "model")
    write_tokenizer(directory, NUM_ROWS + 1)
    return directory


async def test_a_models_files_are_read_while_vulkan_is_opened(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = threading.Event()
    beside: list[bool] = []
    create, read = Instance.create, ModelFiles.read

    def held_create(*, validation: bool = False) -> Instance:
        beside.append(reading.wait(PATIENCE_S))
        return create(validation=validation)

    def noted_read(*arguments: Any, **options: Any) -> ModelFiles:
        reading.set()
        return read(*arguments, **options)

    monkeypatch.setattr(Instance, "create", held_create)
    monkeypatch.setattr(ModelFiles, "read", noted_read)
    async with open_engine():
        pass
    assert beside == [True]


async def test_other_kernels_are_compiled_and_the_rest_is_imported_once_the_reads_have_begun(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    listed: list[bool] = []
    streams: list[LoadStream] = []
    make_stream, prepare, make_runner = LoadStream.__init__, KernelLibrary.prepare, opening._import_runner

    def noted_stream(stream: LoadStream, *arguments: Any, **options: Any) -> None:
        make_stream(stream, *arguments, **options)
        streams.append(stream)

    def noted_prepare(kernels: KernelLibrary, requests: Iterable[KernelRequest]) -> list[Kernel]:
        wanted = list(requests)
        if any(request.name.startswith("rms_norm") for request in wanted):
            begun.append(streams[0].begun.is_set())
        return prepare(kernels, wanted)

    def noted_import() -> None:
        begun.append(streams[0].begun.is_set())
        make_runner()

    def noted_listing(kernels: NeededKernels) -> tuple[KernelRequest, ...]:
        listed.append(streams[0].begun.is_set())
        return list_steps(kernels)

    async def late_enter(load: LoadPipeline) -> LoadPipeline:
        await asyncio.sleep(0.2)
        return await enter(load)

    enter, list_steps = LoadPipeline.__aenter__, NeededKernels.list_steps
    monkeypatch.setattr(NeededKernels, "list_steps", noted_listing)
    monkeypatch.setattr(LoadPipeline, "__aenter__", late_enter)
    monkeypatch.setattr(LoadStream, "__init__", noted_stream)
    monkeypatch.setattr(KernelLibrary, "prepare", noted_prepare)
    monkeypatch.setattr(opening, "_import_runner", noted_import)
    async with open_engine() as engine:
        assert engine._model.kernels._steps is not None, "nobody who asks for them in the event loop has to wait"
        await engine._model.load  # which compiles, too
    assert begun == [True, True]
    assert listed and all(listed)


async def test_a_tokenizer_of_more_tokens_than_the_embeddings_have_rows_ends_the_start(
    open_engine: OpenEngine, too_many_tokens: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        async with open_engine(too_many_tokens):
            pytest.fail("opened with tokens that the model does not have")
    found = f"the tokenizer has {NUM_ROWS + 1} tokens, the embeddings have {NUM_ROWS} rows"
    assert str(caught.value) == f"{too_many_tokens}: {found}"


async def test_a_start_that_fails_leaves_no_task_to_its_tokenizer(
    model_directory: WriteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on = threading.Event()
    make = TokenizerTask.make

    def held_make(start: TokenizerTask) -> MadeTokenizer:
        going_on.wait(PATIENCE_S)
        return make(start)

    monkeypatch.setattr(TokenizerTask, "make", held_make)
    before = asyncio.all_tasks()
    try:
        with pytest.raises(UnicornError, match="no-such-device"):
            async with Engine.open(model_directory("gemma3"), device="no-such-device"):
                pytest.fail("opened without a device")
        assert {task.get_name() for task in asyncio.all_tasks() - before} == set()
    finally:
        going_on.set()


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_load_has_ended_before_a_start_that_fails_waits_for_its_device(
    elsewhere: bool,
    open_engine: OpenEngine,
    device_info: DeviceInfo,
    too_many_tokens: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would wait for what the load still submits."""
    target = AttentionTarget(AttentionKind.VULKAN, str(device_info.index)) if elsewhere else AttentionTarget()
    order: list[str] = []
    wait_idle = Device.wait_idle

    async def endless_run(stream: LoadStream) -> None:
        stream.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            order.append("load")

    def noted_wait(device: Device) -> None:
        order.append("device")
        wait_idle(device)

    monkeypatch.setattr(LoadStream, "run", endless_run)
    monkeypatch.setattr(Device, "wait_idle", noted_wait)
    with pytest.raises(CheckpointError, match="the tokenizer has"):
        async with open_engine(too_many_tokens, attention=target):
            pytest.fail("opened with tokens that the model does not have")
    assert order[0] == "load"
    assert "device" in order
