"""A machine with an NPU, as an engine finds it: files, kernels, and the double of pyxrt."""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.npu.builds import write_build
from tests.npu.fake_xrt import Npu
from tests.npu.machine import Machine
from unicorn_async.npu.geometry import HEAD_DIMS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from unicorn_async.npu.geometry import Chip


class NpuMachine:
    """The files below `machine.root`, the folder of builds, and the hardware."""

    def __init__(self, folder: Path, kernels: Path, chip: Chip) -> None:
        self.machine = Machine(folder / "machine", chip)
        self.builds = folder / "builds"
        self.npu = Npu(kernels)
        for head_dim in HEAD_DIMS:
            write_build(self.builds, chip, head_dim)


@contextmanager
def npu_machine(folder: Path, kernels: Path, chip: Chip, patch: pytest.MonkeyPatch) -> Iterator[NpuMachine]:
    """Have engines find the machine; fail the test after which buffers or contexts are left on it."""
    made = NpuMachine(folder, kernels, chip)
    patch.setattr("unicorn_async.npu.choice.NpuHost", made.machine.host)
    patch.setenv("UNICORN_NPU_BUILD", str(made.builds))
    patch.setitem(sys.modules, "pyxrt", made.npu.module())
    yield made
    made.npu.release()
    gc.collect()  # the traceback of an error may hold a run, and a run its buffers
    assert (made.npu.buffers, made.npu.contexts, made.npu.unmapped_first) == (0, 0, 0)
