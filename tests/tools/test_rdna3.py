"""RADV's code for kernels is counted rightly; what the plans choose for an integrated RDNA3 spills nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import ConfigError
from unicorn_async.resources import demo_model_dir

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

import rdna3
from get_radv import default_prefix, environment
from rdna3_code import counted, hottest_loop
from rdna3_driver import Statistics
from rdna3_models import TYPES, Model

if TYPE_CHECKING:
    from collections.abc import Iterable

SCRIPT = Path(rdna3.__file__)
NESTED = """
BB0:
    s_mov_b32 s0, 0                    ; be800080
BB1:
    global_load_b128 v[0:3], v4, s[2:3] ; dc5c0000
    v_fmac_f32_e32 v1, v2, v3          ; 56020702
BB2:
    v_dot4_i32_iu8 v5, v6, v7, v5      ; cc164005
    v_dot4_i32_iu8 v5, v8, v9, v5      ; cc164005
    v_exp_f32_e32 v9, v9               ; 7e124b09
    s_cbranch_scc1 BB2                 ; bfa2fffb
BB3:
    v_add_f32_e32 v1, v1, v5           ; 06020b01
    s_cbranch_scc1 BB1                 ; bfa2fff6
BB4:
    v_fma_f32 v0, v0, v0, v0           ; d6130000
    s_endpgm                           ; bfb00000
"""


def test_the_loop_with_most_multiply_adds_of_its_own_is_counted_without_what_is_around_it() -> None:
    loop = hottest_loop(NESTED)
    assert loop is not None
    assert (loop.vector, loop.dots, loop.loads, loop.macs) == (3, 2, 0, 2 * 4 * 32)
    assert loop.cycles() == (1 + 1 + 4) / 2  # a transcendental takes four, and there are two SIMDs


def test_a_turn_of_an_inner_loop_counts_with_the_loop_around_it() -> None:
    heavier = NESTED.replace("v_fmac_f32_e32 v1, v2, v3 ", "v_wmma_f32_16x16x16_f16 v[8:15], v[0:7], v[0:7], v[8:15]")
    loop = hottest_loop(heavier)
    assert loop is not None
    assert (loop.matrix, loop.dots, loop.loads, loop.load_bytes) == (1, 2, 1, 16 * 32)
    assert loop.macs == 16**3


def test_code_that_multiplies_outside_of_loops_is_a_loop_of_one_turn() -> None:
    unrolled = NESTED.replace("v_fma_f32 v0, v0, v0, v0 ", "v_dot4_i32_iu8 v5, v6, v7, v5\n" * 3)
    loop = hottest_loop(unrolled)
    assert loop is not None
    assert (loop.dots, loop.vector) == (5, 8)


def test_dot_products_count_before_other_multiply_adds() -> None:
    scales = NESTED.replace("v_fmac_f32_e32 v1, v2, v3 ", "v_fma_f32 v1, v2, v3, v1\n" * 9)
    loop = hottest_loop(scales)
    assert loop is not None
    assert (loop.dots, loop.vector, loop.macs) == (2, 3, 2 * 4 * 32)


def test_multiply_adds_that_scale_dot_products_and_matrices_take_time_and_make_nothing() -> None:
    dots = ["v_dot4_i32_iu8 v5, v6, v7, v5", "v_fma_f32 v1, v2, v3, v1"]
    found = counted(dots)
    assert (found.macs, found.vector_cycles) == (4 * 32, 2)
    assert counted([*dots, "v_wmma_f32_16x16x16_f16 v[8:15], v[0:7], v[0:7], v[8:15]"]).macs == 16**3


def test_code_without_multiply_adds_has_no_loop_to_speak_of() -> None:
    assert hottest_loop("BB0:\n    v_add_f32_e32 v0, v0, v0\n    s_cbranch_scc1 BB0\n") is None


@pytest.mark.parametrize(
    ("instruction", "counts"),
    [
        ("v_dual_fmac_f32 v0, v1, v2 :: v_dual_fmac_f32 v3, v4, v5", {"macs": 64, "vector_cycles": 1}),
        ("v_pk_fma_f16 v0, v1, v2, v0", {"macs": 64}),
        ("v_wmma_i32_16x16x16_iu8 v[0:7], v[8:11], v[12:15], v[0:7]", {"macs": 4096, "vector_cycles": 32}),
        ("ds_load_2addr_b64 v[0:3], v4 offset1:8", {"lds": 1, "lds_bytes": 16 * 32}),
        ("ds_store_b16 v0, v1", {"lds": 1, "lds_bytes": 2 * 32}),
        ("scratch_load_b32 v0, off, s0", {"scratch": 1, "loads": 0}),
        ("global_store_b64 v0, v[2:3], s[0:1]", {"loads": 1, "load_bytes": 8 * 32}),
        ("v_mul_lo_u32 v0, v1, v2", {"vector_cycles": 4, "macs": 0}),
    ],
)
def test_instructions_count_as_what_they_do(instruction: str, counts: dict[str, int]) -> None:
    found = counted([instruction])
    assert {name: getattr(found, name) for name in counts} == counts


@pytest.mark.parametrize(
    ("chip", "vgprs", "lds_bytes", "waves"),
    [
        ("780M", 64, 0, 16),
        ("780M", 120, 0, 8),
        ("780M", 120, 43_520, 3),  # three work-groups of four waves, on four SIMDs
        ("780M", 256, 0, 4),
        ("7900XTX", 120, 0, 12),
        ("7900XTX", 256, 0, 5),
    ],
)
def test_registers_and_lds_leave_room_for_so_many_waves(chip: str, vgprs: int, lds_bytes: int, waves: int) -> None:
    statistics = Statistics(
        lanes=32, vgprs=vgprs, spilled=0, scratch_bytes=0, lds_bytes=lds_bytes, code_bytes=0, instructions=0
    )
    assert rdna3.CHIPS[chip].waves(statistics, workgroup=128) == waves


def radv(*arguments: str, script: Path = SCRIPT, **own: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **own})


ON_ALL_CHIPS = ("F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "int4", "nf4")
SYSTEMS = {"VK_DRIVER_FILES": rdna3.ICD} if Path(rdna3.ICD).is_file() else {}
# Another than the system's, and where its libraries are: a file that is named, or what tools/test unpacks.
NAMED = os.environ.get("UNICORN_TEST_RADV", "")
OTHER = {"VK_DRIVER_FILES": NAMED} if NAMED else environment(default_prefix())
HAS_MATRICES = """
import sys
from unicorn_async.gpu.instance import Instance
from unicorn_async.ops.subgroups import matrix_subgroup_size
with Instance.create() as made:
    sys.exit(matrix_subgroup_size(made.devices()[0]) is None)
"""
needs_radv = pytest.mark.skipif(not SYSTEMS, reason="no RADV here (Debian: mesa-vulkan-drivers)")


@pytest.fixture(scope="module")
def with_matrices() -> dict[str, str]:
    """The environment of a RADV that knows matrices."""
    probe = [sys.executable, "-c", HAS_MATRICES]
    for driver in filter(None, (OTHER, SYSTEMS)):
        given = {**os.environ, **driver, "RADV_FORCE_FAMILY": rdna3.FAMILIES[0]}
        if not subprocess.run(probe, env=given, capture_output=True, check=False, timeout=60).returncode:
            return driver
    pytest.skip("no RADV with matrices here: Mesa 24 or newer has it, and tools/get_radv.py gets it on Debian 12")


@pytest.fixture(scope="module", params=["the system's", "with matrices"])
def driver(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of each RADV here."""
    if request.param == "the system's":
        if not SYSTEMS:
            pytest.skip("no RADV here (Debian: mesa-vulkan-drivers)")
        return SYSTEMS
    found: dict[str, str] = request.getfixturevalue("with_matrices")
    if found == SYSTEMS:
        pytest.skip("the system's RADV knows matrices")
    return found


@needs_radv
def test_what_the_plans_choose_for_an_integrated_rdna3_is_told_and_stays_in_its_registers(tmp_path: Path) -> None:
    file, code = tmp_path / "rows.json", tmp_path / "code"
    model = str(demo_model_dir())
    given = ("--tokens", "1", "4", "32", "--chips", "780M", "--json", str(file), "--code", str(code))
    done = radv(model, *given, **SYSTEMS)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert "radv" in found["driver"]
    rows = found["models"][model]
    assert {row["tokens"] for row in rows} == {1, 4, 32}
    assert {row["statistics"]["scratch_bytes"] + row["statistics"]["spilled"] for row in rows} == {0}
    assert all(row["statistics"]["vgprs"] > 0 < row["waves"] for row in rows)
    products = [row for row in rows if row["shape"]]
    assert products and all(row["loop"]["macs"] and row["code_us"] and row["memory_us"] for row in products)
    assert len(list(code.iterdir())) <= len(rows)
    assert all("s_endpgm" in file.read_text() for file in code.iterdir())


def checked(driver: dict[str, str], models: Iterable[str], *arguments: str) -> None:
    done = radv(*models, "--check", *arguments, **driver)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_no_pipeline_of_a_780m_spills_or_leaves_room_for_too_few_waves(driver: dict[str, str]) -> None:
    checked(driver, ("llama-8b:Q4_K", "qwen3-0.6b:F16"), "--chips", "780M", "--tokens", "1", "8", "32", "512")
    checked(driver, ["gemma3-4b:int4"], "--chips", "780M", "--tokens", "1", "32", "--kv-dtype", "int8")  # heads of 256


def test_no_pipeline_of_a_780m_spills_for_a_cache_of_f32(driver: dict[str, str]) -> None:
    models = ("llama-8b:Q4_K", "qwen3-0.6b:Q4_K", "gemma4-e4b:Q4_0")  # heads of 128, and of 256 and 512
    checked(driver, models, "--chips", "780M", "--tokens", "1", "32", "--kv-dtype", "f32")


def test_prompts_are_compiled_by_matrices_where_a_driver_knows_them(
    with_matrices: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "rows.json"
    done = radv("llama-8b:Q4_K", "--tokens", "512", "--chips", "780M", "--json", str(file), **with_matrices)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["models"]["llama-8b:Q4_K"]
    by_matrices = {row["kernel"] for row in rows if row["loop"] is not None and row["loop"]["matrix"]}
    assert any(name.startswith("linear_quant_coopmat") for name in by_matrices)
    assert any(name.startswith("attention_prefill_coopmat") for name in by_matrices)


def test_no_pipeline_of_experts_sinks_recurrent_states_and_heads_of_512_spills_or_leaves_room_for_too_few_waves(
    driver: dict[str, str],
) -> None:
    dense = ("gemma4-e4b:int4", "qwen3.5-27b:Q4_K")  # of 8 query heads of 512 to a kv head, and 6 of 256
    mixtures = ("gpt-oss-20b:MXFP4", "gemma4-26b-a4b:Q4_K", "qwen3.5-35b-a3b:IQ4_XS")  # 8 of 64, 8 of 512, 8 of 256
    mamba = "granite4-h-small:Q4_K"
    checked(driver, (*dense, *mixtures, mamba), "--chips", "780M", "--tokens", "1", "8", "512")
    checked(driver, ("glm-4.7-flash:Q4_K", "deepseek-v2-lite:F16"), "--chips", "780M", "--tokens", "1", "8", "512")
    others = ("gpt-oss-20b:F16", "gemma4-31b:Q4_K", "qwen3.5-27b:nf4")
    checked(driver, others, "--kv-dtype", "int8", "--chips", "780M", "--tokens", "1", "32")


@pytest.mark.whole("every format and number of tokens, on the larger chips, too: a minute")
@pytest.mark.parametrize("shape", ["gemma3-27b", "llama-8b", "qwen3-0.6b"])
def test_no_pipeline_of_any_chip_spills_or_leaves_room_for_too_few_waves(driver: dict[str, str], shape: str) -> None:
    checked(driver, [f"{shape}:{kind}" for kind in ON_ALL_CHIPS])
    checked(driver, [f"{shape}:Q4_K"], "--kv-dtype", "int8")


@pytest.mark.whole("every other format")
def test_no_pipeline_of_a_780m_spills_in_any_format(driver: dict[str, str]) -> None:
    models = [f"gemma3-27b:{kind}" for kind in TYPES if kind not in ON_ALL_CHIPS]
    checked(driver, models, "--chips", "780M", "--tokens", "1", "2", "8", "32", "512")


def row(vgprs: int, lanes: int, spilled: int = 0, scratch_bytes: int = 0, lds_bytes: int = 0) -> rdna3.Row:
    held = Statistics(lanes, vgprs, spilled, scratch_bytes, lds_bytes, code_bytes=0, instructions=0)
    waves = rdna3.CHIPS["780M"].waves(held, workgroup=256)
    return rdna3.Row("780M", 1, "kernel", "", "", held, waves, None, None, None)


def test_what_breaks_the_rules_is_said() -> None:
    assert row(vgprs=256, lanes=32).faults == ()
    assert row(vgprs=192, lanes=64).faults == ()
    assert row(vgprs=96, lanes=32, lds_bytes=33_000).faults == ("33000 bytes of LDS",)
    assert row(vgprs=256, lanes=32, lds_bytes=60_000).faults == ("60000 bytes of LDS",)
    spilled = row(vgprs=256, lanes=64, spilled=3, scratch_bytes=512).faults
    assert spilled == ("3 registers spilled", "512 bytes of scratch")


def test_shapes_are_models_without_files() -> None:
    model = Model.find("qwen3-0.6b:Q4_K")
    types = {dest.name: dest.dtype for dest in model.plan.destinations}
    assert {types["layers.0.down"].value, types["embed"].value} == {"Q4_K", "Q6_K"}
    with pytest.raises(ConfigError, match="and one of F16, Q8_0"):
        Model.find("qwen3-0.6b:Q2_0")
    with pytest.raises(ConfigError, match=r"gemma4-31b:MXFP4: expected gemma4-31b: and one of (?!.*MXFP4)"):
        Model.find("gemma4-31b:MXFP4")


def test_shapes_of_mixtures_have_types_of_their_own_for_experts_and_for_rows_of_no_whole_blocks() -> None:
    types = {dest.name: dest.dtype.value for dest in Model.find("gpt-oss-20b:MXFP4").plan.destinations}
    assert (types["layers.0.experts_down"], types["layers.0.o"]) == ("MXFP4", "Q8_0")
    types = {dest.name: dest.dtype.value for dest in Model.find("gemma4-26b-a4b:Q4_K").plan.destinations}
    assert (types["layers.0.experts_down"], types["layers.0.o"]) == ("Q5_0", "Q4_K")


@needs_radv
def test_an_estimate_is_no_better_than_the_memory_and_worse_where_shares_are_reached(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    given = ["qwen3-0.6b:Q4_K", "--chips", "780M", "--streams", "1", "32", "--json", str(file)]
    done = radv(*given, script=SCRIPT.with_name("rdna3_estimate.py"), **SYSTEMS)
    assert done.returncode == 0, done.stderr
    prompt, one, many = json.loads(file.read_text())["steps"]
    assert [step["step"] for step in (prompt, one, many)] == ["prompt of 512", "1 stream", "32 streams"]
    read = sum(dest.nbytes for dest in Model.find("qwen3-0.6b:Q4_K").plan.destinations)  # the embeddings are the head
    assert 0.9 < one["at_most"] * read / 89.6e9 < 1.0
    assert one["bound_by_memory"] > 0.9 > prompt["bound_by_memory"]
    for step in (one, prompt, many):
        least, most = (rate / step["at_most"] for rate in step["likely"])
        assert 0.2 < least < most < 0.87
    assert one["at_most"] < many["at_most"] < 32 * one["at_most"]
    rows = dict(re.findall(r"\| qwen3-0.6b:Q4_K \| 780M \| ([^|]+) \| (.+) \|", done.stdout))
    assert [cell.split(":")[0] for cell in rows["1 stream"].split(" | ")[:3]] == [
        *(f"{one[name]:.1f}" for name in ("memory_ms", "code_ms")),
        str(one["dispatches"]),
    ]


def test_without_radv_one_line_says_so(tmp_path: Path) -> None:
    done = radv(str(demo_model_dir()), VK_DRIVER_FILES=str(tmp_path / "no.json"))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "mesa-vulkan-drivers" in done.stderr
