"""`unicorn npu doctor`: what it says where XRT, the driver and the kernels are asked, and its options."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.npu.builds import write_build
from unicorn_async.cli import npu as command
from unicorn_async.cli.main import main
from unicorn_async.npu.geometry import NPU1

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.npu.fake_xrt import Npu
    from tests.npu.machine import Machine


@pytest.mark.usefixtures("npu")
def test_the_doctor_tries_every_build(machine: Machine, tmp_path: Path) -> None:
    write_build(tmp_path / "builds", NPU1, 128)
    findings = command.diagnose(machine.host(), tmp_path / "builds")
    kernels = [finding for finding in findings if finding.check.startswith("kernels")]
    assert all(finding.ok for finding in findings)
    assert "the known answers are right" in kernels[1].summary
    assert kernels[0].remedy == "unicorn npu build --chip npu1 --head-dim 64"
    text = command.format_findings(findings)
    assert "note kernels, head_dim 64: not built" in text and "ok   kernels, head_dim 128" in text


@pytest.mark.usefixtures("npu")
def test_the_doctor_fails_where_nothing_is_built_or_a_build_is_damaged(machine: Machine, tmp_path: Path) -> None:
    assert [finding.ok for finding in command.diagnose(machine.host(), tmp_path / "builds")[-3:]] == [False] * 3
    write_build(tmp_path / "builds", NPU1, 64)
    write_build(tmp_path / "builds", NPU1, 128).xclbin.write_bytes(b"other")
    last = command.diagnose(machine.host(), tmp_path / "builds")[-3:]
    assert [finding.ok for finding in last] == [True, False, True]
    assert "expected SHA-256" in last[1].summary


@pytest.mark.parametrize(
    ("break_it", "wanted"),
    [
        (lambda npu: setattr(npu, "max_contexts", 0), "contexts or columns are used up"),
        (lambda npu: npu.faults.extend(["timeout"] * 5), "the NPU hangs"),
        (lambda npu: setattr(npu, "hand_out_wrong_groups", True), "memory group"),
    ],
)
def test_the_doctor_tells_what_only_a_trial_shows(
    machine: Machine, npu: Npu, tmp_path: Path, break_it: Callable[[Npu], None], wanted: str
) -> None:
    write_build(tmp_path / "builds", NPU1, 128)
    break_it(npu)
    finding = command.diagnose(machine.host(), tmp_path / "builds")[-2]
    assert not finding.ok and wanted in finding.summary


@pytest.mark.parametrize(("kernel", "advice"), [("6.17.0-6-generic", "amdxdna-dkms"), ("7.0.0-14-generic", "same age")])
@pytest.mark.parametrize("opens", [False, True])
def test_the_doctor_names_driver_firmware_and_plugin_where_the_driver_does_not_take_what_xrt_asks_for(
    machine: Machine, npu: Npu, tmp_path: Path, opens: bool, kernel: str, advice: str
) -> None:
    machine.write("proc/sys/kernel/osrelease", kernel)
    if opens:
        npu.refused_contexts = "(err=-22): Invalid argument"
        write_build(tmp_path / "builds", NPU1, 128)
    else:
        npu.devices = ()
    findings = command.diagnose(machine.host(), tmp_path / "builds")
    assert [finding.ok for finding in findings if finding.check == "XRT and the NPU"] == [opens]
    (refused,) = (finding for finding in findings if not finding.ok)
    assert all(word in refused.remedy for word in ("driver", "firmware", "plugin", advice))
    assert ("err=-22" if opens else "No such device") in refused.summary and "IOMMU" not in refused.remedy


def test_the_doctor_stops_at_a_machine_that_can_not_be_used(machine: Machine, tmp_path: Path) -> None:
    machine.limit_memlock("65536")
    findings = command.diagnose(machine.host(), tmp_path)
    text = command.format_findings(findings)
    assert "FAIL memlock: 65,536 bytes" in text and "ok   NPU: npu1" in text and "kernels" not in text


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((), "required: action\n"),
        (("doctors",), "invalid choice: 'doctors'"),
        (("doctor", "--bogus", "xyz"), "unicorn npu doctor: error: unrecognized arguments: --bogus xyz"),
        (("doctor", "xyz"), "unicorn npu doctor: error: unrecognized arguments: xyz"),
    ],
)
def test_arguments_without_a_meaning_are_refused(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    wanted: str,
) -> None:
    monkeypatch.setattr(command, "NpuHost", machine.host)
    with pytest.raises(SystemExit) as ended:
        main(["npu", *arguments])
    assert ended.value.code == 2 and wanted in capsys.readouterr().err


def test_the_doctor_has_help_and_json(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "NpuHost", machine.host)
    with pytest.raises(SystemExit) as ended:
        main(["npu", "doctor", "--help"])
    assert ended.value.code == 0 and "usage: unicorn npu doctor [-h] [--json]" in capsys.readouterr().out
    machine.remove("sys/module/amdxdna")
    assert main(["npu", "doctor", "--json"]) == 1
    assert [finding["check"] for finding in json.loads(capsys.readouterr().out) if not finding["ok"]] == ["driver"]
