"""Doctor and validation, end to end, against the double."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.npu.builds import write_build
from tests.npu.machine import SUFFIX
from tests.npu.xrt_enums import Direction
from unicorn_async.cli import npu as command
from unicorn_async.errors import DeviceLostError
from unicorn_async.gpu.queue import Queue
from unicorn_async.npu.geometry import NPU1, HeadLayout
from unicorn_async.npu.host import NpuHost
from unicorn_async.npu.measured import MeasuredRates, find_rates, write_rates
from unicorn_async.npu.pace import FEW_TASKS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.npu.fake_xrt import Npu
    from tests.npu.machine import Machine


def test_a_report_says_what_was_right_how_fast_it_was_and_on_what(validate: Any, npu: Npu, tmp_path: Path) -> None:
    write_build(tmp_path / "builds", NPU1, 64)
    status, report = validate("--no-gpu")
    assert status == 0 and report["passed"]
    assert report["chip"] == "npu1" and report["kernel"] == "7.0.0-14-generic"
    (part,) = report["head_dims"]
    assert {(a["context"], a["queries"], a["window"]) for a in part["answers"]} == {
        *((1, 1, window) for window in (0, 48, 1024)),
        *((65, queries, window) for queries in (1, 17) for window in (0, 48, 1024)),
    }
    assert all(answer["mean_relative_error"] <= 3e-3 for answer in part["answers"])
    assert part["latency_us"]["p50"] > 0 and part["bandwidth"]["bytes_per_s"] > 0
    assert part["computing"]["queries"] == 64 and part["computing"]["multiply_adds_per_s"] > 0
    assert set(part["sync_us"]) == {"to_device", "from_device"}
    for costs in part["sync_us"].values():
        assert set(costs) == {"4096", "65536", "1048576"} and min(costs.values()) > 0
    for direction in Direction:
        assert {size for way, _, size in npu.syncs if way is direction} >= {4096, 65536, 1 << 20}
    assert part["soak"]["questions"] > 0 and part["soak"]["gpu"] is None


@pytest.mark.usefixtures("validate")
async def test_rates_are_measured_on_blocks_in_a_row_and_those_of_scattered_ones_told_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = sys.modules["validate"]
    tables: list[tuple[int, ...]] = []

    async def times(_: object, question: Any, repeats: int) -> list[float]:
        tables.append(question.table)
        return [float(len(tables))] * repeats

    monkeypatch.setattr(script, "_times", times)
    attention = SimpleNamespace(heads=script.heads_of(HeadLayout(NPU1, 64)))
    found = await script._bandwidth(attention, 1024, 3)
    await script._computing(attention, 1024, 3)
    in_a_row = tuple(range(16))
    assert tables[0] == tables[2] == in_a_row != tables[1]
    assert found["bytes_per_s"] == 2 * found["scattered_bytes_per_s"]


def test_the_soak_keeps_a_gpu_busy_and_names_it(validate: Any, npu: Npu, tmp_path: Path) -> None:
    write_build(tmp_path / "builds", NPU1, 64)
    status, report = validate("--device", "llvmpipe")
    assert status == 0
    gpu = report["head_dims"][0]["soak"]["gpu"]
    assert "llvmpipe" in gpu["name"] and gpu["bytes_copied"] > 0


@pytest.mark.parametrize("user_pointers", ["taken", "refused", "cloned"])
def test_both_ways_to_hand_over_are_timed_and_what_keeps_one_from_being_used_is_told(
    validate: Any, npu: Npu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_pointers: str
) -> None:
    npu.user_pointers = user_pointers
    write_build(tmp_path / "builds", NPU1, 64)
    monkeypatch.setattr("hand_over.STEPS", {"a few": (1, 1, 3), "a prompt": (20,)})
    status, report = validate("--device", "llvmpipe")
    costs = report["head_dims"][0]["hand_over_us"]
    assert status == 0 and "llvmpipe" in costs["gpu"]
    assert costs["copied"]["a few"]["p50"] > 0 and costs["copied"]["a prompt"]["p90"] > 0
    if user_pointers == "taken":
        assert set(costs["shared"]) == {"a few", "a prompt"}
    else:
        wanted = {"refused": "err=-22", "cloned": "NpuSelfCheckError"}[user_pointers]
        assert wanted in costs["shared"]["failure"]


def test_wrong_results_fail_the_validation_and_the_rates_of_an_earlier_one_go(
    validate: Any, npu: Npu, machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build, software = write_build(tmp_path / "builds", NPU1, 64), machine.host().npu_software()
    rates = MeasuredRates(build.sha256, software, "2026-11-25", 40e9, 200e9, 127e-6, 4096)
    kept = write_rates(tmp_path / "builds", build, rates)
    npu.faults = deque(["ok"] * 3 + ["wrong results"])
    status, report = validate("--no-gpu")
    assert status == 1 and not report["passed"]
    told = capsys.readouterr().out
    assert "wrong: {'context': 1" in told and f"rates of an earlier validation, removed: {kept}" in told
    assert find_rates(tmp_path / "builds", build, software) is None


def test_a_wrong_answer_in_the_soak_fails_the_validation_and_is_in_its_report(
    validate: Any, npu: Npu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_build(tmp_path / "builds", NPU1, 64)
    script = sys.modules["validate"]
    sync_cost = script._sync_cost

    def last_before_the_soak(*args: Any) -> Any:
        npu.faults = deque(["wrong results"])
        return sync_cost(*args)

    monkeypatch.setattr(script, "_sync_cost", last_before_the_soak)
    status, report = validate("--no-gpu")
    (part,) = report["head_dims"]
    assert status == 1 and not report["passed"] and not part["passed"]
    assert all(answer["passed"] for answer in part["answers"])
    assert "NpuError: question 1, context " in part["soak"]["failure"]
    assert "soak, head_dim 64: NpuError: question 1" in capsys.readouterr().out


def test_a_run_that_had_to_be_done_again_fails_the_validation(
    validate: Any, npu: Npu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_build(tmp_path / "builds", NPU1, 64)
    npu.faults = deque(["ok"] * 5 + ["context lost"])
    status, report = validate("--no-gpu")
    (part,) = report["head_dims"]
    assert status == 1 and not report["passed"] and not part["passed"]
    assert part["soak"]["recoveries"] == 1 and all(answer["passed"] for answer in part["answers"])
    assert "soak, head_dim 64: recoveries: 1; the driver gave up on runs" in capsys.readouterr().out


def test_a_gpu_that_is_lost_during_the_soak_fails_the_validation(
    validate: Any, npu: Npu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_build(tmp_path / "builds", NPU1, 64)

    def lost(*_: Any) -> int:
        raise DeviceLostError("the GPU fell off the bus")

    monkeypatch.setattr(Queue, "submit", lost)
    status, report = validate("--device", "llvmpipe")
    soak = report["head_dims"][0]["soak"]
    assert status == 1 and not report["passed"]
    assert soak["failure"] == "DeviceLostError: the GPU fell off the bus"
    assert "llvmpipe" in soak["gpu"]["name"] and soak["gpu"]["bytes_copied"] == 0


@pytest.mark.usefixtures("npu")
def test_a_report_has_no_names(
    validate: Any, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_build(tmp_path / "builds", NPU1, 64)
    monkeypatch.setenv("HOME", str(machine.root / "opt/xilinx"))
    machine.library_path = (machine.root / "home/bob/xrt",)
    for library in ("libxrt_core.so.2", "libxrt_driver_xdna.so.2"):
        machine.write(f"home/bob/xrt/{library}", "")
    status, report = validate("--no-gpu")
    found = {finding["check"]: finding["summary"] for finding in report["checks"]}
    assert status == 0 and "bob" not in json.dumps(report)
    assert found["pyxrt"] == f"~/xrt/python/pyxrt{SUFFIX}"
    assert found["XRT"].endswith("/home/…/xrt/libxrt_core.so.2")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/home/alice/venv/x.so: gone", "~/venv/x.so: gone"),
        ("source /home/alice", "source ~"),
        ("in /home/alice, and /home/bob; /Users/bob", "in ~, and /home/…; /Users/…"),
        ("/home/alice2/x and /home/ali/x", "/home/…/x and /home/…/x"),
        ("/data/alice/x and /data/alices/x", "/data/…/x and /data/alices/x"),
        ("no path, alice", "no path, alice"),
    ],
)
def test_homes_and_their_owners_names_are_taken_out_of_paths(
    validate: Any, monkeypatch: pytest.MonkeyPatch, text: str, wanted: str
) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    assert sys.modules["validate"].without_user_names({"a": [text, 5, None]}) == {"a": [wanted, 5, None]}


@pytest.mark.parametrize("fault", [None, "timeout"])
def test_runs_grow_last_of_all_as_long_as_their_answers_are_right(
    validate: Any,
    npu: Npu,
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: str | None,
) -> None:
    script, growth = sys.modules["validate"], sys.modules["task_growth"]
    head_dims, grow = (128, 256) if fault else (256,), growth.grow_tasks
    builds = [write_build(tmp_path / "builds", NPU1, head_dim) for head_dim in head_dims]
    monkeypatch.setattr(growth, "_TASKS", (270, 300))
    kept_before: list[int] = []

    software = machine.host().npu_software()

    async def growing(device: Any, build: Any, heads_of: Any, context_len: int) -> Any:
        rates = [find_rates(tmp_path / "builds", one, software) for one in builds]
        kept_before.extend(one.tasks_per_run for one in rates if one is not None)
        npu.faults.extend([fault] if fault else [])
        return await grow(device, build, heads_of, 300 if build.head_dim == 256 else 600)

    monkeypatch.setattr(script, "grow_tasks", growing)
    status, report = validate("--no-gpu")
    first, last = report["head_dims"][0], report["head_dims"][-1]
    rates = find_rates(tmp_path / "builds", builds[0], machine.host().npu_software())
    assert kept_before == [FEW_TASKS] * len(builds)  # all that may be lost is kept before
    assert rates is not None and rates.tasks_per_run == first["tasks"]["tasks_per_run"]
    if fault is None:
        assert status == 0 and report["passed"]
        assert FEW_TASKS < first["tasks"]["tasks_per_run"] <= 300 and first["tasks"]["failure"] is None
    else:
        assert status == 1 and not report["passed"] and last["passed"] and "tasks" not in last
        assert first["tasks"]["tasks_per_run"] == FEW_TASKS and "1 recoveries" in first["tasks"]["failure"]
        told = capsys.readouterr().out
        assert "runs with more tasks, head_dim 128: NpuError: " in told and "runs stay at 256 tasks\nFAILED" in told


def test_an_npu_that_is_lost_amid_several_head_sizes_leaves_a_report_of_what_was_measured(
    validate: Any,
    npu: Npu,
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = sys.modules["validate"]
    builds = [write_build(tmp_path / "builds", NPU1, head_dim) for head_dim in (64, 128, 256)]
    latency = script._latency

    async def lost_at_the_second(attention: Any, repeats: int) -> Any:
        if attention.heads.layout.head_dim == 128:
            npu.faults = deque(["context lost"] * 2)
        return await latency(attention, repeats)

    monkeypatch.setattr(script, "_latency", lost_at_the_second)
    status, report = validate("--no-gpu")
    first, second = report["head_dims"]
    assert status == 1 and not report["passed"] and report["not_tried"] == [256]
    assert first["passed"] and first["soak"]["questions"] > 0 and "tasks" not in first  # nothing grows after that
    assert find_rates(tmp_path / "builds", builds[0], machine.host().npu_software()) is not None
    assert second["answers"] and "soak" not in second and "new context did not help" in second["failure"]
    told = capsys.readouterr().out
    assert "head_dim 128: NpuContextLostError: " in told and "not tried after that: head_dim 256\nFAILED" in told


def test_an_emulator_is_asked_without_a_look_at_the_machine_and_leaves_no_rates(
    validate: Any, npu: Npu, machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.remove("sys/bus/pci/devices")
    build = write_build(tmp_path / "builds", NPU1, 64)
    status, report = validate("--no-gpu", "--emulated", "npu1")
    assert (status, report["passed"], report["emulated"], report["checks"]) == (0, True, True, [])
    assert (
        find_rates(tmp_path / "builds", build, machine.host().npu_software()) is None
        and "tasks" not in report["head_dims"][0]
    )
    npu.devices = ()
    (tmp_path / "report.json").unlink()
    assert validate("--no-gpu", "--emulated", "npu1") == (1, None)
    assert "opening XRT's first device as an emulator" in capsys.readouterr().err


@pytest.mark.usefixtures("npu")
def test_the_doctor_tells_others_rates_of_an_npu_until_a_validation_has_measured_this_one(
    validate: Any, machine: Machine, tmp_path: Path
) -> None:
    def told() -> tuple[str, str]:
        findings = command.diagnose(machine.host(), tmp_path / "builds")
        (finding,) = (finding for finding in findings if finding.check == "rates, head_dim 64")
        return finding.summary, finding.remedy

    write_build(tmp_path / "builds", NPU1, 64)
    summary, remedy = told()
    assert "the NPU reads 25.6 to 46 GB/s (implied by https://" in summary and "unicorn npu validate" in remedy
    status, report = validate("--no-gpu")
    summary, remedy = told()
    rate = report["head_dims"][0]["bandwidth"]["bytes_per_s"]
    assert status == 0 and f"the NPU reads {rate * 1e-9:.4g} GB/s (measured here by" in summary and not remedy


def test_the_commands_reach_the_tools_with_their_options(tmp_path: Path) -> None:
    def unicorn(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"UNICORN_NPU_BUILD": str(tmp_path), "PATH": "/nowhere", "COLUMNS": "300"}
        environment |= {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
        program = "from unicorn_async.cli.main import main; import sys; sys.exit(main())"
        return subprocess.run(
            [sys.executable, "-c", program, "npu", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )

    built = unicorn("build", "--chip", "npu2", "--head-dim", "64")
    assert built.returncode == 1 and "mlir-aie 1.4.0" in built.stderr
    assert str(tmp_path) in unicorn("validate", "--help").stdout
    diagnosed = unicorn("doctor", "--json")
    findings = json.loads(diagnosed.stdout)
    assert diagnosed.returncode == (0 if all(finding["ok"] for finding in findings) else 1)
    if not NpuHost().accel_nodes():
        refused = unicorn("validate")
        assert refused.returncode == 1 and "unicorn npu validate: " in refused.stderr
