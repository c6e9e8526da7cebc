"""Fixtures that open the Vulkan device under test.

UNICORN_DEVICE chooses it by index or part of its name; the default is the software device. UNICORN_VALIDATION=1 turns
on Vulkan's validation layers, and any message of theirs fails the test that caused it.

A run without `--whole` has each value of a parameter once, one with it every pair of them and what takes long; see
tests/selection.py.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import hypothesis
import pytest

from tests.patience import PATIENCE_S
from tests.selection import check_reasons, left_to_the_whole, left_to_their_names
from unicorn_async.errors import VulkanUnavailableError
from unicorn_async.gpu.choice import select_device
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.guidance.limits import TURNS
from unicorn_async.ops.matrix_fragments import find_matrix_fragments
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.gpu.device_info import DeviceInfo

WANTED = os.environ.get("UNICORN_DEVICE")
VALIDATION = os.environ.get("UNICORN_VALIDATION") == "1"

hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")  # no example fails for the time that a busy machine takes for it


def choose(instance: Instance) -> DeviceInfo:
    """Return the device that the environment asks for, or the software device."""
    devices = instance.devices()
    if WANTED is None:
        for info in devices:
            if info.is_software:
                return info
    return select_device(devices, WANTED, allow_software=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole", action="store_true", help="run every pair of parameters' values, and what takes long, too"
    )


def pytest_configure() -> None:
    """Have one place for what Mesa compiled, wherever a test has its caches: compiling is most of what the tests do."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    os.environ.setdefault("MESA_SHADER_CACHE_DIR", str(folder))
    logging.getLogger("asyncio").addFilter(is_no_slow_turn)
    for client in (httpx.Client, httpx.AsyncClient):  # which have 5 s of their own for each step
        client.__init__.__kwdefaults__["timeout"] = httpx.Timeout(PATIENCE_S)


def is_no_slow_turn(record: logging.LogRecord) -> bool:
    """With PYTHONASYNCIODEBUG=1 a loop tells of each turn that took a tenth of a second: on a busy machine any may."""
    return not record.getMessage().startswith("Executing ")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the whole run alone has, or combinations of whose values each pair has another test."""
    check_reasons(items)
    choose = left_to_their_names if config.getoption("whole") else left_to_the_whole
    left = choose(items, config.args)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


def pytest_collection_finish() -> None:
    """Take what was collected off the garbage collector's hands: thousands of tests, which stay to the end."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    """Name the device that the results are of."""
    try:
        instance = Instance.create()
    except VulkanUnavailableError as exc:
        return f"vulkan: {exc}"
    try:
        info = choose(instance)
    except VulkanUnavailableError as exc:
        return f"vulkan: {exc}"
    finally:
        instance.close()
    kind = "SOFTWARE" if info.is_software else info.type.value
    layers = ", validation layers on" if VALIDATION else ""
    return f"vulkan: {info.name}, {info.driver_name} {info.driver_info}, {kind}{layers}"


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Processes of tokenizers, templates and grammars take the time that a busy machine has them take.

    Tests of what does not answer set limits of their own.
    """
    limits = {
        "guidance.follower.PATIENCE": 1000,
        "guidance.follower.ANSWER_S": PATIENCE_S,
        "guidance.process.ANSWER_S": PATIENCE_S,
        "guidance.process.PREPARE_S": PATIENCE_S,
        "guidance.followers.TURNS": TURNS._replace(wait_s=PATIENCE_S),
        "tokenizer.process._ANSWER_S": PATIENCE_S,
        "tokenizer.template_process._LATE_S": 60.0,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in limits.items():
            patch.setattr(f"unicorn_async.{name}", limit)
        yield


@pytest.fixture(scope="session")
def instance() -> Iterator[Instance]:
    """The Vulkan instance that all tests share."""
    made = Instance.create(validation=VALIDATION)
    yield made
    made.close()
    assert not made.validation_messages, "\n\n".join(made.validation_messages)


@pytest.fixture(scope="session")
def device(instance: Instance, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """The open device that all tests share, with the project's shaders and a pipeline cache of its own."""
    cache_dir = tmp_path_factory.mktemp("pipelines")
    with Device.open(instance, choose(instance), cache_dir=cache_dir, shader_dir=resource_dir("shaders")) as opened:
        find_matrix_fragments(opened)
        yield opened


@pytest.fixture(autouse=True)
def no_validation_messages(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test during which a validation layer said something."""
    shared: Instance | None = request.getfixturevalue("instance") if "instance" in request.fixturenames else None
    yield
    if shared is not None and shared.validation_messages:
        messages = "\n\n".join(shared.validation_messages)
        shared.validation_messages.clear()
        pytest.fail(f"validation layers:\n{messages}")


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """The usual handling of Ctrl-C and of a closed terminal here and in processes that are started here.

    A shell has the one ignored for what runs in the background, `nohup` the other, and processes inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hangup)


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of the session's own, for compiled pipelines; one, whichever folder's tests a process has."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
