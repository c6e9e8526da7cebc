"""The built wheel has everything that the commands need, and works without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.cli.command import RUN, SOFTWARE_DRIVERS, software_only

pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")

PROJECT = Path(__file__).resolve().parent.parent
DATA = "unicorn_async/_data"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, timeout=600)
    return next(folder.glob("*.whl"))


def test_the_wheel_carries_the_page_the_demo_model_and_every_shader(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        manifest = json.loads(archive.read(f"{DATA}/shaders/manifest.json"))
    compiled = {path.name for path in (PROJECT / "shaders" / "spirv").glob("*.spv")}
    assert compiled <= {Path(name).name for name in names if name.startswith(f"{DATA}/shaders/spirv/")}
    assert {f"{DATA}/web/built/{file.name}" for file in (PROJECT / "web" / "built").iterdir()} <= names
    model = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert {f"unicorn_async/demo/model/{name}" for name in model} <= names
    assert "unicorn_async/py.typed" in names
    assert manifest


def test_the_wheel_has_neither_tests_nor_tools_nor_sources_of_shaders(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    outside = [name for name in names if not name.startswith("unicorn_async/") and ".dist-info/" not in name]
    assert outside == []
    assert [name for name in names if name.endswith((".comp", ".glsl", ".ts", ".tsx", ".pyc"))] == []


def test_what_npu_build_says_of_a_missing_toolchain_names_a_page_that_the_wheel_has(
    wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "PATH": "/nowhere"}
    command = [*RUN, "npu", "build", "--chip", "npu1", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    page = tmp_path / "installed" / DATA / "docs/npu.md"
    assert done.returncode == 1 and f"{page} says how to install them" in done.stderr
    assert "pip install mlir_aie==1.4.0" in page.read_text()


@pytest.mark.skipif(not SOFTWARE_DRIVERS, reason="Mesa's software Vulkan driver is not installed")
def test_the_demo_model_answers_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environ = {**os.environ, **software_only(), "PYTHONPATH": str(tmp_path)}
    command = [*RUN, "generate", "demo", "What is 17 + 25?", "--chat", "--json", "--device", "llvmpipe"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "42" in json.loads(done.stdout)["text"]
    inspected = subprocess.run(
        [*RUN, "inspect", "demo", "--json"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert json.loads(inspected.stdout)["path"].startswith(str(tmp_path))
