"""The command line's own frame: what ends a command before it runs."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NoReturn

import pytest

from unicorn_async.cli import generate, serve
from unicorn_async.cli.main import main
from unicorn_async.gpu.instance_start import InstanceStart

if TYPE_CHECKING:
    from unicorn_async.gpu.instance import Instance


def interrupted(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def no_vulkan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vulkan is not opened beside the imports."""

    def create(start: InstanceStart) -> Instance | None:
        return None

    monkeypatch.setattr(InstanceStart, "_create", create)


@pytest.mark.parametrize(
    ("owner", "name"), [(importlib, "import_module"), (InstanceStart, "__enter__"), (InstanceStart, "__exit__")]
)
def test_ctrl_c_before_the_command_runs_is_its_exit_status(
    owner: object, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(owner, name, interrupted)
    assert main(["generate", "/nonexistent", "hi"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("module", ["argparse", "logging", "unicorn_async.errors", "unicorn_async.public_text"])
def test_ctrl_c_amid_the_first_imports_is_its_exit_status(module: str) -> None:
    code = f"""
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

for name in [name for name in sys.modules if name == {module!r}]:
    del sys.modules[name]
sys.meta_path.insert(0, Finder())
from unicorn_async.cli.main import main
sys.exit(main(["generate", "/nonexistent", "hi"]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")


@pytest.mark.parametrize("module", ["argparse", "unicorn_async.gpu.instance_start", "unicorn_async.cli.generate"])
def test_ctrl_c_in_a_callback_amid_an_import_ends_the_command_too(module: str) -> None:
    """Python prints what such a callback raises, and goes on; importlib has one that holds a lock."""
    code = f"""
import signal, sys, weakref

class Thing:
    pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            thing = Thing()
            self.ref = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
            del thing

sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
from unicorn_async.cli.main import main
sys.exit(main(["generate", "/nonexistent", "hi"]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert (ended.returncode, ended.stderr) == (130, "")


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_a_command_that_runs_handles_ctrl_c_as_its_caller_did(
    handler: signal._HANDLER, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is ignored, as by a shell for what runs in the background."""
    handlers: list[object] = []

    def run(options: object) -> int:
        handlers.append(signal.getsignal(signal.SIGINT))
        return 0

    monkeypatch.setattr(generate, "run", run)
    before = signal.signal(signal.SIGINT, handler)
    try:
        assert main(["generate", "/nonexistent", "hi"]) == 0
        handlers.append(signal.getsignal(signal.SIGINT))
        with pytest.raises(SystemExit):
            main(["generate"])
        handlers.append(signal.getsignal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert handlers == [handler] * 3


def test_a_command_runs_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "run", lambda options: 7)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(main, ["generate", "/nonexistent", "hi"]).result() == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["unicorn_async.cli.serve", "unicorn_async.cli.serving"])
def test_a_server_that_is_ended_before_it_serves_ends_as_one_that_serves(module: str, number: signal.Signals) -> None:
    code = f"""
import signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal({int(number)})

signal.signal({int(number)}, signal.SIG_DFL)
sys.meta_path.insert(0, Finder())
from unicorn_async.cli.main import main
sys.exit(main(["serve", "/nonexistent", "--port", "0"]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_signals_are_handled_after_a_server_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(serve, "run", lambda options: seen.append(signal.getsignal(signal.SIGHUP)) or 0)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["serve", "/nonexistent"]) == 0
        assert seen == [signal.SIG_IGN] == [signal.getsignal(signal.SIGHUP)]
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert main(["serve", "/nonexistent"]) == 0
        assert seen[1] is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
