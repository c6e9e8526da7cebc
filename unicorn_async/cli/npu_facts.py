"""What is seen of a machine's NPU without trying its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import NpuBuildError
from unicorn_async.npu.doctor import examine, find_npu
from unicorn_async.npu.geometry import HEAD_DIMS
from unicorn_async.npu.manifest import find_build

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.npu.doctor import Finding
    from unicorn_async.npu.geometry import Chip
    from unicorn_async.npu.host import NpuHost


@dataclass(frozen=True, slots=True)
class NpuFacts:
    """An NPU, what keeps it from being used, and for which head_dims kernels are built."""

    name: str
    pci_device: str
    pci_address: str
    problems: tuple[Finding, ...]
    kernels: tuple[int, ...]

    @classmethod
    def of(cls, host: NpuHost, builds: Path) -> NpuFacts | None:
        """Look at a machine and at a folder of builds; None without an NPU."""
        found = find_npu(host)
        if found is None:
            return None
        device, chip = found
        problems = tuple(finding for finding in examine(host) if not finding.ok)
        kernels = tuple(head_dim for head_dim in HEAD_DIMS if _is_built(builds, chip, head_dim))
        pci_device = f"1022:{device.device.removeprefix('0x')}"
        return cls(f"AMD NPU {chip.name}", pci_device, device.address, problems, kernels)

    def text(self) -> str:
        """Return lines for people."""
        sizes = ", ".join(map(str, self.kernels))
        rows = [
            ("kind", "NPU, for attention alone (--attention npu)"),
            ("PCI", f"{self.pci_device} at {self.pci_address}"),
            ("kernels", f"for a head_dim of {sizes}" if sizes else "none; `unicorn npu build` builds them"),
            *(("can't be used", f"{finding.summary}; {finding.remedy}") for finding in self.problems),
        ]
        if not self.problems and self.kernels:
            rows.append(("not tried", "`unicorn npu doctor` asks the kernels known questions"))
        return f"{self.name}\n" + "\n".join(f"   {label:<14}{text}" for label, text in rows)

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values; an NPU has no index among the Vulkan devices."""
        return {
            "type": "npu",
            "index": None,
            "name": self.name,
            "pci_device": self.pci_device,
            "pci_address": self.pci_address,
            "problems": [
                {"check": finding.check, "summary": finding.summary, "remedy": finding.remedy}
                for finding in self.problems
            ],
            "kernels": list(self.kernels),
        }


def _is_built(builds: Path, chip: Chip, head_dim: int) -> bool:
    try:
        find_build(builds, chip, head_dim)
    except NpuBuildError:
        return False
    return True
