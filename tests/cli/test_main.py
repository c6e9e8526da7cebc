"""The command line's own frame: what ends a command before it runs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

import pytest

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


@pytest.mark.parametrize("module", ["argparse", "importlib.metadata", "logging", "unicorn_async.errors"])
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
