"""Builds of the kernels for the double: a manifest, and a file in place of the xclbin."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from unicorn_async.npu.manifest import Build, build_name, find_build, manifest_json
from unicorn_async.npu.schedule import Lane
from unicorn_async.npu.sources import source_hash
from unicorn_async.npu.transaction import Dialect
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.npu.geometry import Chip

# Words as the compiler writes them for a linear transfer; a write by a mask says where tokens go.
DESCRIPTOR = (0, 0, 0x80000000, 0, 0, 1 << 25)
TOKEN_ROUTE = (3, 0, 0x1D210, 0, 0x0F00, 0x0F00, 28)
DIALECT = Dialect((0x06030100, 0x0105), DESCRIPTOR, (TOKEN_ROUTE,))


def lanes_of(chip: Chip) -> tuple[Lane, ...]:
    """Two lanes to a column; channels are crossed, so that taking one for the other shows."""
    return tuple(Lane(column, channel, 1 - channel) for column in range(chip.columns) for channel in (0, 1))


def write_build(folder: Path, chip: Chip, head_dim: int, *, kernels: object = (("MLIR_AIE", 8),)) -> Build:
    """Write a build for the double, and read it back."""
    folder.mkdir(parents=True, exist_ok=True)
    name = build_name(chip, head_dim)
    content = json.dumps({"manifest": f"{name}.json", "kernels": kernels}).encode()
    (folder / f"{name}.xclbin").write_bytes(content)
    build = Build(
        chip=chip,
        head_dim=head_dim,
        xclbin=folder / f"{name}.xclbin",
        sha256=hashlib.sha256(content).hexdigest(),
        source_sha256=source_hash(resource_dir("npu")),
        toolchain={"mlir-aie": "none: for the test double"},
        dialect=DIALECT,
        lanes=lanes_of(chip),
    )
    (folder / f"{name}.json").write_text(manifest_json(build))
    return find_build(folder, chip, head_dim)
