"""What the host's kernel tells about its GPUs, for messages that help."""

from __future__ import annotations

import grp
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RenderNode:
    """A GPU's device file, and the group that may open it."""

    path: Path
    group: str


@dataclass(frozen=True, slots=True)
class CardMemory:
    """An AMD card's memory in bytes: VRAM, and GTT, the part of the host's memory that it may use."""

    name: str
    vram_total: int
    vram_used: int
    gtt_total: int
    gtt_used: int


@dataclass(frozen=True, slots=True)
class HostGraphics:
    """Looks at /dev/dri and /sys/class/drm; the paths are fields so that tests can bring their own."""

    dev_dri: Path = Path("/dev/dri")
    sys_drm: Path = Path("/sys/class/drm")

    def has_render_node(self) -> bool:
        """Whether the kernel offers a GPU at all."""
        return any(self.dev_dri.glob("renderD*"))

    def unreadable_render_nodes(self) -> tuple[RenderNode, ...]:
        """Return the GPUs that this user may not open."""
        return tuple(
            RenderNode(path, _group_name(path))
            for path in sorted(self.dev_dri.glob("renderD*"))
            if not os.access(path, os.R_OK | os.W_OK)
        )

    def amd_memory(self) -> tuple[CardMemory, ...]:
        """Return the memory of every AMD card, as amdgpu reports it."""
        cards = []
        for folder in sorted(self.sys_drm.glob("card*/device")):
            sizes = [
                _number(folder / f"mem_info_{name}") for name in ("vram_total", "vram_used", "gtt_total", "gtt_used")
            ]
            known = [size for size in sizes if size is not None]
            if len(known) == len(sizes):
                cards.append(CardMemory(folder.parent.name, *known))
        return tuple(cards)


def _group_name(path: Path) -> str:
    try:
        return grp.getgrgid(path.stat().st_gid).gr_name
    except (KeyError, OSError):
        return "render"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
