"""Builds of the kernels for the double: a manifest, and a file in place of the xclbin."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from unicorn_async.npu.manifest import Build, build_name, find_build, manifest_json
from unicorn_async.npu.precision import Products
from unicorn_async.npu.schedule import Team
from unicorn_async.npu.sources import source_hash
from unicorn_async.npu.transaction import Dialect
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.npu.geometry import Chip

# Words as the compiler writes them for a linear transfer; a write by a mask says where a channel's tokens go.
DESCRIPTOR = (0, 0, 0x80000000, 0, 0, 1 << 25)
_GENERATIONS = {"npu1": 3, "npu2": 4}


def dialect_of(chip: Chip) -> Dialect:
    """What the compiler would write for a chip; tokens of all channels have routes."""
    header = (0x06000100 | _GENERATIONS[chip.name] << 16, 0x0100 | chip.columns)
    controls = [
        column << 25 | control for column in range(chip.columns) for control in (0x1D200, 0x1D208, 0x1D210, 0x1D218)
    ]
    return Dialect(header, DESCRIPTOR, tuple((3, 0, control, 0, 0x0F00, 0x1F00, 28) for control in controls))


def teams_of(chip: Chip) -> tuple[Team, ...]:
    """Two teams to a column; channels are crossed, so that taking one for the other shows."""
    return tuple(Team(column, channel, 1 - channel) for column in range(chip.columns) for channel in (0, 1))


def write_build(
    folder: Path,
    chip: Chip,
    head_dim: int,
    *,
    kernels: object = (("MLIR_AIE", 8),),
    products: Products = Products.BF16,
) -> Build:
    """Write a build for the double, and read it back."""
    folder.mkdir(parents=True, exist_ok=True)
    name = build_name(chip, head_dim)
    content = json.dumps({"manifest": f"{name}.json", "kernels": kernels}).encode()
    (folder / f"{name}.xclbin").write_bytes(content)
    build = Build(
        chip=chip,
        head_dim=head_dim,
        products=products,
        xclbin=folder / f"{name}.xclbin",
        sha256=hashlib.sha256(content).hexdigest(),
        source_sha256=source_hash(resource_dir("npu")),
        toolchain={"mlir-aie": "none: for the test double"},
        dialect=dialect_of(chip),
        teams=teams_of(chip),
    )
    (folder / f"{name}.json").write_text(manifest_json(build))
    return find_build(folder, chip, head_dim)
