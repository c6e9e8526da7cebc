"""`unicorn devices`: the Vulkan devices and the NPU, and what of them matters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from unicorn_async.cli.npu_facts import NpuFacts
from unicorn_async.gpu.choice import why_no_gpu
from unicorn_async.gpu.host import HostGraphics
from unicorn_async.gpu.instance import Instance
from unicorn_async.npu.host import NpuHost
from unicorn_async.npu.manifest import build_dir

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from unicorn_async.gpu.device_info import CooperativeMatrixShape, DeviceInfo, MemoryHeap

_AMD = 0x1002
_MESA_WITH_MATRICES = (23, 3)  # "VK_KHR_cooperative_matrix on RADV/GFX11+" in the notes of release 23.3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    summary = "print everything that is known, as a JSON array; an NPU is its last entry, of type npu, without an index"
    parser.add_argument("--json", action="store_true", help=summary)


def run(options: argparse.Namespace) -> int:
    """List the devices; a machine without a GPU gets the reason, too."""
    with Instance.create() as instance:
        infos = instance.devices()
    npu = NpuFacts.of(NpuHost(), build_dir())
    if options.json:
        print(devices_json(infos, npu))
        return 0
    print(f"{format_devices(infos)}\n\n{'no NPU found' if npu is None else npu.text()}")
    if all(info.is_software for info in infos):
        print("\nno GPU found" + why_no_gpu(HostGraphics()))
    return 0


def format_devices(infos: Sequence[DeviceInfo]) -> str:
    """Return a block of lines per device, for people."""
    if not infos:
        return "no Vulkan device found"
    return "\n\n".join(_block(info) for info in infos)


def devices_json(infos: Sequence[DeviceInfo], npu: NpuFacts | None = None) -> str:
    """Return a JSON array with everything that is known of each device; an NPU is the last."""
    known = [info.to_json() for info in infos]
    if npu is not None:
        known.append(npu.to_json())
    return json.dumps(known, indent=2)


def _block(info: DeviceInfo) -> str:
    kind = "SOFTWARE, runs on the CPU" if info.is_software else f"{info.type.value} GPU"
    api = ".".join(map(str, info.api_version))
    dot = "accelerated" if info.integer_dot else "not accelerated" if "integer_dot" in info.features else "none"
    sizes = f"{info.min_subgroup_size} to {info.max_subgroup_size}, {info.subgroup_size} by default"
    rows = [
        ("kind", kind),
        ("driver", f"{info.driver_name} {info.driver_info}, Vulkan {api}"),
        ("memory", f"{_gib(info.available_bytes)} available of {_gib(info.memory_bytes)}"),
        *((f"heap {index}", _heap(heap)) for index, heap in enumerate(info.heaps)),
        ("CPU maps VRAM", "all of it" if info.rebar else "no"),
        *([("compute units", str(info.compute_units))] if info.compute_units else []),
        ("subgroups", sizes),
        ("float16", "yes" if info.float16 else "no"),
        ("integer dot", dot),
        *_matrix_rows(info.cooperative_matrix),
        *_driver_rows(info),
    ]
    if info.missing:
        rows.append(("can't be used", f"lacks {', '.join(info.missing)}"))
    return f"{info.index}: {info.name}\n" + "\n".join(f"   {label:<14}{text}" for label, text in rows)


def _heap(heap: MemoryHeap) -> str:
    place = "device-local" if heap.device_local else "host"
    return (
        f"{_gib(heap.nbytes)}, {place}; {_gib(heap.available_bytes)} available"
        f" ({_gib(heap.used)} used of a budget of {_gib(heap.budget)})"
    )


def _matrix_rows(shapes: Sequence[CooperativeMatrixShape]) -> list[tuple[str, str]]:
    """Return a row for each pair of types, with its shapes m × n × k."""
    by_types: dict[str, list[str]] = {}
    for shape in shapes:
        types = f"{shape.a} × {shape.b} + {shape.c} → {shape.result}, {shape.scope}"
        by_types.setdefault(types, []).append(f"{shape.m}×{shape.n}×{shape.k}")
    if not by_types:
        return [("matrix", "none")]
    texts = [f"{', '.join(dict.fromkeys(sizes))} of {types}" for types, sizes in by_types.items()]
    return [("matrix" if not index else "", text) for index, text in enumerate(texts)]


def _driver_rows(info: DeviceInfo) -> list[tuple[str, str]]:
    """Say of an AMD GPU without matrices that its driver is too old to have any for RDNA3."""
    version = info.driver_version >> 22, info.driver_version >> 12 & 0x3FF  # as Mesa's drivers pack it
    is_radv = info.vendor_id == _AMD and info.driver_name == "radv"
    if not is_radv or info.cooperative_matrix or version >= _MESA_WITH_MATRICES:
        return []
    text = (
        "Mesa older than 23.3 has no matrices for any GPU of AMD's; on RDNA3 (Radeon 780M, RX 7000) a newer one makes"
        " prompts about twice as fast, by an estimate (Debian 12: mesa-vulkan-drivers of bookworm-backports)"
    )
    return [("advice", text)]


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"
