"""The NPU that is to attend: what it asks of a model, and whether it is there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from unicorn_async.npu.doctor import find_npu, require_npu
from unicorn_async.npu.geometry import NPU1, HeadLayout
from unicorn_async.npu.host import NpuHost
from unicorn_async.npu.manifest import build_dir, find_build
from unicorn_async.npu.measured import find_rates
from unicorn_async.npu.pace import FEW_TASKS
from unicorn_async.npu.work import AttentionHeads

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.config import EngineConfig
    from unicorn_async.npu.geometry import Chip


LEAST_BLOCK_SIZE = 64  # tokens that one descriptor reads wherever they lie: fewer cap what a core can read


class Heads(Protocol):
    """A model, as far as its attention is concerned."""

    @property
    def num_heads(self) -> int:
        """Heads of queries."""

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""

    @property
    def head_dim(self) -> int:
        """Elements of a head."""


def fit_npu_options(model: Heads, options: EngineConfig) -> EngineConfig:
    """Return the options with a block size that the NPU's kernels take.

    Raises:
        UnsupportedModelError: it has no kernels for the model's heads.
    """
    fitted = replace(options, block_size=max(LEAST_BLOCK_SIZE, options.block_size))
    _heads(NPU1, model, fitted)  # chunks and rows are those of all chips
    return fitted


@dataclass(frozen=True, slots=True)
class NpuChoice:
    """This machine's NPU, and the folder with kernels for it; `heads` are the model's.

    Runs have `tasks_per_run` of the controller: few, until a validation has seen more of them end well.
    """

    name: str
    host: NpuHost
    builds: Path
    heads: AttentionHeads
    tasks_per_run: int = FEW_TASKS

    @classmethod
    def find(cls, model: Heads, options: EngineConfig) -> NpuChoice:
        """Look for an NPU, for all that it needs, and for kernels of the model's head_dim; nothing stays open.

        Raises:
            NpuUnavailableError: no NPU, no driver, no permission, no XRT. NpuBuildError: no kernels for it.
            UnsupportedModelError: as `fit_npu_options`.
        """
        host, builds = NpuHost(), build_dir()
        device, chip = require_npu(host)
        rates = find_rates(builds, find_build(builds, chip, model.head_dim))
        tasks = FEW_TASKS if rates is None else rates.tasks_per_run
        return cls(f"AMD NPU {chip.name} at {device.address}", host, builds, _heads(chip, model, options), tasks)


def this_chip() -> Chip | None:
    """Return the chip of this machine's NPU, usable or not; None where there is none."""
    found = find_npu(NpuHost())
    return None if found is None else found[1]


def _heads(chip: Chip, model: Heads, options: EngineConfig) -> AttentionHeads:
    layout = HeadLayout(chip, model.head_dim)
    return AttentionHeads(layout, model.num_heads, model.num_kv_heads, options.block_size)
