from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.host import CardMemory, HostGraphics

if TYPE_CHECKING:
    from pathlib import Path


def test_a_card_of_another_vendor_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "card0" / "device").mkdir(parents=True)
    folder = tmp_path / "card1" / "device"
    folder.mkdir(parents=True)
    for size, name in enumerate(("vram_total", "vram_used", "gtt_total", "gtt_used"), start=1):
        (folder / f"mem_info_{name}").write_text(str(size))
    assert HostGraphics(sys_drm=tmp_path).amd_memory() == (CardMemory("card1", 1, 2, 3, 4),)


def test_a_damaged_figure_is_no_figure(tmp_path: Path) -> None:
    folder = tmp_path / "card1" / "device"
    folder.mkdir(parents=True)
    for name in ("vram_total", "vram_used", "gtt_total", "gtt_used"):
        (folder / f"mem_info_{name}").write_text("many")
    assert HostGraphics(sys_drm=tmp_path).amd_memory() == ()


def test_a_host_without_render_nodes(tmp_path: Path) -> None:
    host = HostGraphics(dev_dri=tmp_path / "absent")
    assert not host.has_render_node()
    assert host.unreadable_render_nodes() == ()
