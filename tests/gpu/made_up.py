"""Device descriptions for tests that need no device."""

from __future__ import annotations

from dataclasses import replace

from unicorn_async.gpu.device_info import CooperativeMatrixShape, DeviceInfo, DeviceType, MemoryHeap

GIB = 1 << 30

SOFTWARE = DeviceInfo(
    index=0,
    name="llvmpipe (LLVM 15.0.6, 256 bits)",
    type=DeviceType.SOFTWARE,
    driver_name="llvmpipe",
    driver_info="Mesa 22.3.6",
    driver_version=1,
    api_version=(1, 3, 230),
    vendor_id=0x10005,
    device_id=0,
    device_uuid="00" * 16,
    heaps=(MemoryHeap(8 * GIB, device_local=True, budget=8 * GIB, used=0),),
    subgroup_size=8,
    min_subgroup_size=8,
    max_subgroup_size=8,
    cooperative_matrix=(),
    integer_dot=False,
    rebar=True,
    float16=True,
    int8=True,
    storage16=True,
    storage8=True,
    memory_budget=False,
    external_memory_host=True,
    host_pointer_alignment=4096,
    max_shared_memory=32768,
    max_push_constants=128,
    max_workgroup_size=(1024, 1024, 1024),
    max_workgroup_invocations=1024,
    max_workgroup_count=(65535, 65535, 65535),
    max_storage_range=128 << 20,
    max_allocation=2 * GIB,
    max_allocation_count=4096,
    timestamp_period_ns=1.0,
    features=frozenset({"float16", "int8", "integer_dot", "subgroup_size_control"}),
    missing=(),
)
INTEGRATED = replace(
    SOFTWARE,
    index=1,
    name="AMD Radeon 780M (RADV PHOENIX)",
    type=DeviceType.INTEGRATED,
    driver_name="radv",
    vendor_id=0x1002,
    heaps=(
        MemoryHeap(20 * GIB, device_local=True, budget=20 * GIB, used=2 * GIB),
        MemoryHeap(10 * GIB, device_local=False, budget=10 * GIB, used=0),
    ),
    subgroup_size=64,
    min_subgroup_size=32,
    max_subgroup_size=64,
    cooperative_matrix=(CooperativeMatrixShape(16, 16, 16, "f16", "f16", "f32", "f32", "subgroup"),),
    memory_budget=True,
)
DISCRETE = replace(
    INTEGRATED,
    index=2,
    name="NVIDIA GeForce RTX 4060",
    type=DeviceType.DISCRETE,
    driver_name="NVIDIA",
    heaps=(
        MemoryHeap(8 * GIB, device_local=True, budget=7 * GIB, used=1 * GIB),
        MemoryHeap(32 * GIB, device_local=False, budget=32 * GIB, used=0),
    ),
)

# Heaps as drivers report them.
RADV_780M = replace(  # 64 GiB of RAM: the driver adds up VRAM and GTT and gives out two thirds and one third
    INTEGRATED,
    heaps=(
        MemoryHeap(11 * GIB, device_local=False, budget=10 * GIB, used=0),
        MemoryHeap(22 * GIB, device_local=True, budget=20 * GIB, used=0),
    ),
    max_allocation=4 * GIB,
)
NVIDIA_WINDOW = replace(  # without ReBAR: the window's bytes are the first heap's as well
    DISCRETE,
    heaps=(
        MemoryHeap(8 * GIB, device_local=True, budget=7 * GIB, used=0),
        MemoryHeap(32 * GIB, device_local=False, budget=32 * GIB, used=0),
        MemoryHeap(246 << 20, device_local=True, budget=240 << 20, used=6 << 20),
    ),
    rebar=False,
    max_allocation=4 * GIB,
)
NVIDIA_REBAR = replace(NVIDIA_WINDOW, heaps=NVIDIA_WINDOW.heaps[:2], rebar=True)
RADV_DISCRETE = replace(  # without ReBAR: the window is a heap of its own
    NVIDIA_WINDOW,
    name="AMD Radeon RX 7600 (RADV NAVI33)",
    vendor_id=0x1002,
    heaps=(
        MemoryHeap(8 * GIB - (256 << 20), device_local=True, budget=7 * GIB, used=0),
        MemoryHeap(15 * GIB, device_local=False, budget=15 * GIB, used=0),
        MemoryHeap(256 << 20, device_local=True, budget=250 << 20, used=0),
    ),
)
INTEL = replace(
    INTEGRATED,
    name="Intel(R) Iris(R) Xe Graphics (TGL GT2)",
    driver_name="Intel open-source Mesa driver",
    vendor_id=0x8086,
    heaps=(MemoryHeap(12 * GIB, device_local=True, budget=10 * GIB, used=0),),
    max_allocation=4 * GIB,
)
