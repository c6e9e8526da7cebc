"""The NPU that is to attend: what it asks of a model, and whether it is there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from unicorn_async.errors import NpuBuildError
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
    from unicorn_async.npu.manifest import Build
    from unicorn_async.npu.measured import MeasuredRates


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
class NpuKernels:
    """A build for a head_dim, the machine's software that it runs with, and its rates where a validation left some."""

    build: Build
    software: str
    rates: MeasuredRates | None

    @classmethod
    def find(cls, host: NpuHost, builds: Path, chip: Chip, head_dim: int) -> NpuKernels:
        """Look for them; raises NpuBuildError where there are none."""
        build, software = find_build(builds, chip, head_dim), host.npu_software()
        return cls(build, software, find_rates(builds, build, software))

    @property
    def tasks_per_run(self) -> int:
        """How many tasks of the controller a run has: few, until a validation has seen more of them end well."""
        return FEW_TASKS if self.rates is None else self.rates.tasks_per_run

    @property
    def identity(self) -> tuple[object, ...]:
        """What times that are measured with them are of."""
        return (self.build.sha256, self.software, self.tasks_per_run)


@dataclass(frozen=True, slots=True)
class NpuChoice:
    """This machine's NPU, and the folder with kernels for it; `heads` are the model's."""

    name: str
    host: NpuHost
    builds: Path
    heads: AttentionHeads
    kernels: NpuKernels

    @classmethod
    def find(cls, model: Heads, options: EngineConfig) -> NpuChoice:
        """Look for an NPU, for all that it needs, and for kernels of the model's head_dim; nothing stays open.

        Raises:
            NpuUnavailableError: no NPU, no driver, no permission, no XRT. NpuBuildError: no kernels for it.
            UnsupportedModelError: as `fit_npu_options`.
        """
        host, builds = NpuHost(), build_dir()
        device, chip = require_npu(host)
        kernels = NpuKernels.find(host, builds, chip, model.head_dim)
        return cls(f"AMD NPU {chip.name} at {device.address}", host, builds, _heads(chip, model, options), kernels)


def this_identity(model: Heads) -> tuple[object, ...] | None:
    """Return what times of this machine's NPU are of; None where it has no kernels for the model, or is none."""
    host, chip = NpuHost(), this_chip()
    if chip is None:
        return None
    try:
        return NpuKernels.find(host, build_dir(), chip, model.head_dim).identity
    except NpuBuildError:
        return None


def this_chip() -> Chip | None:
    """Return the chip of this machine's NPU, usable or not; None where there is none."""
    found = find_npu(NpuHost())
    return None if found is None else found[1]


def _heads(chip: Chip, model: Heads, options: EngineConfig) -> AttentionHeads:
    layout = HeadLayout(chip, model.head_dim)
    return AttentionHeads(layout, model.num_heads, model.num_kv_heads, options.block_size)
