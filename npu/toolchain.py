"""Finds what builds the kernels: mlir-aie, its compiler Peano, and XRT's packer. No package index has all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from unicorn_async.errors import NpuBuildError
from unicorn_async.resources import npu_page

MLIR_AIE_VERSION = "1.4.0"  # IRON's Python interface changes between releases


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The tools, by their paths, and their versions."""

    compiler: Path  # Peano's clang++
    aiecc: Path
    peano: Path  # its folder
    includes: Path  # of the AIE API
    versions: dict[str, str]


def find_toolchain() -> Toolchain:
    """Return the toolchain.

    Raises:
        NpuBuildError: something is missing, or mlir-aie has another version; all of it is named.
    """
    problems: list[str] = []
    mlir_aie = _version("mlir_aie")
    if mlir_aie is None:
        problems.append(f"mlir-aie {MLIR_AIE_VERSION} (the Python package mlir_aie)")
    elif mlir_aie.split("+")[0] != MLIR_AIE_VERSION:
        problems.append(f"mlir-aie {MLIR_AIE_VERSION}: this is {mlir_aie}")
    root = _root("mlir_aie", "mlir_aie")
    aiecc = _tool("aiecc", root) or _tool("aiecc.py", root)
    if aiecc is None:
        problems.append("aiecc, a command of mlir-aie")
    peano = (
        Path(os.environ["PEANO_INSTALL_DIR"]) if "PEANO_INSTALL_DIR" in os.environ else _root("llvm-aie", "llvm-aie")
    )
    compiler = peano / "bin/clang++" if peano else None
    if compiler is None or not compiler.is_file():
        where = f"no {compiler}" if compiler else "neither PEANO_INSTALL_DIR nor the Python package llvm-aie"
        problems.append(f"Peano, the compiler for AIE ({where})")
    includes = root / "include" if root else None
    if root is not None and not (root / "include/aie_api/aie.hpp").is_file():
        problems.append(f"the AIE API's headers ({includes}/aie_api/aie.hpp)")
    if shutil.which("xclbinutil") is None:
        problems.append("xclbinutil, a command of XRT")
    if problems or compiler is None or aiecc is None or peano is None or includes is None:
        raise NpuBuildError(f"the NPU's kernels can't be built here; missing: {'; '.join(problems)}. {_hint()}")
    versions = {"mlir-aie": mlir_aie or "", "peano": _version("llvm-aie") or _first_line([str(compiler), "--version"])}
    return Toolchain(compiler, aiecc, peano, includes, versions)


def _hint() -> str:
    return f"{npu_page()} says how to install them"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _root(package: str, folder: str) -> Path | None:
    try:
        found = Path(str(distribution(package).locate_file(folder)))
    except PackageNotFoundError:
        return None
    return found if found.is_dir() else None


def _tool(name: str, root: Path | None) -> Path | None:
    inside = root / "bin" / name if root else None
    if inside is not None and inside.is_file():
        return inside
    found = shutil.which(name)
    return Path(found) if found else None


def _first_line(command: list[str]) -> str:
    """Return what a tool says of its version; raises NpuBuildError where it says nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NpuBuildError(f"{command[0]}: {exc}; {_hint()}") from exc
    lines = done.stdout.split("\n")
    if done.returncode or not lines[0].strip():
        found = f"status {done.returncode} and {done.stdout[:100]!r}"
        raise NpuBuildError(f"{' '.join(command)}: expected the version, got {found}; {_hint()}")
    return lines[0].strip()
