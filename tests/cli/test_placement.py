"""What `inspect` and the banner say of where a model lies."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.gpu.made_up import INTEGRATED, NVIDIA_WINDOW, RADV_780M, SOFTWARE
from tests.memory.test_plan import BF16_8B, GEMMA_27B, HOST, INT4_8B, INT4_27B, LLAMA_8B, STAGING
from unicorn_async.cli.memory_lines import measured_line, planned_line
from unicorn_async.cli.placement import DevicePlacement, has_room
from unicorn_async.config import EngineConfig
from unicorn_async.gpu.budget import HeapKind
from unicorn_async.memory.plan import plan_memory
from unicorn_async.memory.report import HeapReport, MemoryReport

from .command import SOFTWARE_DRIVERS, software_only, unicorn

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.weights.plan import LoadPlan

GIB = 1 << 30
needs_software_driver = pytest.mark.skipif(
    not SOFTWARE_DRIVERS, reason="Mesa's software Vulkan driver is not installed (Debian: mesa-vulkan-drivers)"
)


def placed(config: ModelSpec, plan: LoadPlan, info: DeviceInfo, options: EngineConfig) -> DevicePlacement:
    memory = plan_memory(config, options, plan, info, host_bytes=HOST)
    return DevicePlacement(info, memory, None, "page cache, 4 threads: test", is_chosen=True)


def test_the_table_has_groups_bytes_heaps_and_transforms() -> None:
    options = EngineConfig(max_context=2048, max_num_seqs=1, vram_bytes=10 * GIB)
    text = "\n".join(placed(GEMMA_27B, INT4_27B, RADV_780M, options).lines())
    for words in ("embeddings, output head", "norms and biases", "attention, layers 0 to 61", "KV cache", "workspace"):
        assert words in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("FFN, layers")] == ["VRAM", "GTT"]
    assert "copy int4" in next(line for line in text.splitlines() if line.startswith("attention"))
    assert "VRAM, of which 10.7 GB may be used" in text


def test_the_table_says_that_host_memory_over_the_bus_is_slow() -> None:
    options = EngineConfig(max_context=2048, gtt_bytes=16 * GIB)
    text = "\n".join(placed(LLAMA_8B, BF16_8B, NVIDIA_WINDOW, options).lines())
    ffn = [line for line in text.splitlines() if line.startswith("FFN")]
    assert "over the bus (slow)" in ffn[-1]
    assert next(line for line in text.splitlines() if line.startswith("embeddings")).endswith("(slow)")


def test_what_the_steps_of_a_load_keep_is_a_row() -> None:
    options = EngineConfig(max_context=2048, max_num_batched_tokens=512)
    for frames, row in ((2, []), (6, ["beside it, steps             67.1 MB  VRAM, at most, while it loads"])):
        options = replace(options, num_load_steps=frames)
        place = placed(LLAMA_8B, INT4_8B, NVIDIA_WINDOW, options)
        assert [line for line in place.lines() if line.startswith("beside it, steps")] == row
        assert place.to_json()["step_bytes"] == (frames - 2) * 2 * 4 * 512 * LLAMA_8B.hidden_size


def test_what_a_load_stages_is_a_row_where_it_counts() -> None:
    options = EngineConfig(max_context=2048)
    for info, where in ((SOFTWARE, "host memory"), (NVIDIA_WINDOW, "")):
        memory = plan_memory(LLAMA_8B, options, INT4_8B, info, staging=STAGING, host_bytes=HOST)
        place = DevicePlacement(info, memory, None, "", is_chosen=True)
        rows = [line for line in place.lines() if "staging" in line]
        assert rows == ([f"beside it, staging            268 MB  {where}, at most, while it loads"] if where else [])
        assert place.to_json()["staged_bytes"] == (256 << 20 if where else 0)


def test_of_one_memory_behind_two_heaps_the_whole_is_said() -> None:
    memory = plan_memory(
        GEMMA_27B, EngineConfig(max_context=2048, max_num_seqs=1), INT4_27B, RADV_780M, host_bytes=22 * GIB
    )
    text = "\n".join(DevicePlacement(RADV_780M, memory, None, "", is_chosen=True).lines())
    assert "may be used of both, which are one memory" in text


def test_a_device_that_a_load_would_not_take_has_one_line() -> None:
    place = replace(placed(GEMMA_27B, INT4_27B, RADV_780M, EngineConfig(max_context=2048)), is_chosen=False)
    assert place.lines() == [f"1: {RADV_780M.name}: fits, with a context of up to 2048 tokens", ""]
    none = DevicePlacement(SOFTWARE, None, "12 bytes of memory are missing", "", is_chosen=False)
    assert none.lines()[0] == f"0: {SOFTWARE.name} (SOFTWARE): can't be used: 12 bytes of memory are missing"
    assert json.loads(json.dumps(none.to_json()))["fits"] is False


def test_a_model_has_room_where_a_load_would_find_some() -> None:
    gpu = placed(LLAMA_8B, INT4_8B, RADV_780M, EngineConfig(max_context=2048))
    full = replace(gpu, plan=None, problem="12 bytes of memory are missing", is_chosen=False)
    software = replace(gpu, info=SOFTWARE, is_chosen=False)
    assert has_room([])
    assert has_room([gpu])
    assert has_room([full, gpu])
    assert not has_room([full])
    assert not has_room([full, software])
    assert has_room([full, replace(software, is_chosen=True)])  # the demo model's
    assert has_room([software, software])
    assert not has_room([replace(full, info=SOFTWARE, is_chosen=True)])


def test_what_was_planned_is_compared_with_what_the_driver_says() -> None:
    vram = HeapReport(HeapKind.VRAM, 9 * 10**9, 9_100_000_000, 9_200_000_000, beside=10**8)
    gtt = HeapReport(HeapKind.GTT, 2 * 10**9, 2 * 10**9, 4 * 10**9)
    report = MemoryReport((vram, gtt))
    assert planned_line(INTEGRATED, report) == "memory   planned 9.0 GB of VRAM and 2.0 GB of GTT"
    assert planned_line(NVIDIA_WINDOW, report).endswith("2.0 GB of host memory, over the bus (slow)")
    assert measured_line(INTEGRATED, report) == (
        "memory   VRAM: planned 9.0 GB, allocated 9.1 GB, driver says 9.2 GB; "
        "GTT: planned 2.0 GB, allocated 2.0 GB, driver says 4.0 GB: THEY DIFFER"
    )
    unplanned = MemoryReport((HeapReport(HeapKind.VRAM, 10**9, 2 * 10**9, None),))
    assert measured_line(INTEGRATED, unplanned).endswith("the driver gives no figure: THEY DIFFER")
    silent = MemoryReport((HeapReport(HeapKind.VRAM, 10**9, 10**9, None), HeapReport(HeapKind.GTT, 0, 0, None)))
    assert measured_line(SOFTWARE, silent) == (
        "memory   host memory: planned 1.0 GB, allocated 1.0 GB, the driver gives no figure"
    )


@needs_software_driver
def test_inspect_plans_as_a_load_would() -> None:
    options = ("--weights", "int8", "--max-context", "256", "--max-num-seqs", "2", "--vram", "1G", "--json")
    report = json.loads(unicorn("inspect", "demo", *options, environ=software_only()).stdout)
    (device,) = report["devices"]
    assert (device["fits"], device["chosen"], device["max_context"]) == (True, True, 256)
    assert device["room"]["total"] == GIB
    ffn = next(row for row in device["placement"] if row["group"] == "FFN")
    assert (ffn["layers"], ffn["heap"], ffn["transforms"]) == ([0, 7], "VRAM", ["quantise BF16→int8"])
    cache = next(row for row in device["placement"] if row["group"] == "KV cache")
    assert cache["transforms"] == ["f16"]
    planned = sum(row["bytes"] for row in device["placement"])
    assert 0 <= device["planned_bytes"]["VRAM"] - planned < 1 << 20  # what lies between the tensors


@needs_software_driver
def test_inspect_plans_a_cache_in_int8() -> None:
    sizes = {}
    for kind in ("f16", "int8"):
        report = json.loads(unicorn("inspect", "demo", "--kv-dtype", kind, "--json", environ=software_only()).stdout)
        cache = next(row for row in report["devices"][0]["placement"] if row["group"] == "KV cache")
        assert cache["transforms"] == [kind]
        sizes[kind] = cache["bytes"]
    assert sizes["int8"] * 32 == sizes["f16"] * 17


@needs_software_driver
def test_inspect_says_what_is_missing() -> None:
    result = unicorn("inspect", "demo", "--vram", "20M", environ=software_only())
    assert result.status == 1
    assert "bytes of memory are missing" in result.stdout
    assert "--weights int8 or int4" in result.stdout
    assert unicorn("inspect", "demo", "--device", "radeon", environ=software_only()).status != 0


@needs_software_driver
def test_a_limit_reaches_the_engine() -> None:
    result = unicorn("generate", "demo", "Count", "--device", "llvmpipe", "--vram", "20M", environ=software_only())
    assert result.status != 0
    assert "20,971,520 may be used" in result.stderr
