"""Where the package's data lies: compiled shaders, the page and the demo model."""

from __future__ import annotations

from pathlib import Path

from unicorn_async.errors import ConfigError


def resource_dir(name: str) -> Path:
    """Return the folder of `shaders`, `web`, `npu` or `docs`, in an installed wheel or in a checkout.

    Raises:
        ConfigError: the installation lacks the folder.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "_data" / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise ConfigError(f"{name}: not found in the installation at {package}; reinstall unicorn-async")


def npu_page() -> Path:
    """Return the page on attention on an NPU, which messages refer to.

    Raises:
        ConfigError: the installation lacks it.
    """
    return resource_dir("docs") / "npu.md"


def demo_model_dir() -> Path:
    """Return the bundled model's folder.

    Raises:
        ConfigError: the installation lacks it.
    """
    folder = Path(__file__).resolve().parent / "demo" / "model"
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: the bundled model is not there; reinstall unicorn-async")
    return folder
