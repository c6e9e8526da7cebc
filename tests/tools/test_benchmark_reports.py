"""What is made of the benchmarks' reports: estimates for another device, and plots."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.engine.held_out import Likelihood
from unicorn_async.errors import DeviceLostError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import plot
import quality
import report as reports
from step_work import KeysAndValues, Mixture, StepWork

WORK = {
    "weight_bytes": 1_000,
    "layer_weights": 1_800,
    "head_weights": 200,
    "mixtures": (),
    "attending": [{"window": window, "token_bytes": 4} for window in (0, 0, 8)],
    "state_bytes": 0,
}
LIMITS = {"copy_bytes_per_s": 10_000.0, "fma_flops_per_s": 1e9, "matrix_flops_per_s": 0.0}


def run(streams: int, rate: float, kv_bytes: float = 0.0) -> dict[str, Any]:
    return {
        "streams": streams,
        "context": 16.0,
        "tokens_per_s": {"median": rate, "lowest": 0.9 * rate, "highest": 1.1 * rate},
        "weight_bytes": 1_000,
        "kv_bytes": kv_bytes,
        "state_bytes": 0,
        "flops": 4_000.0 * streams,
    }


def report(*runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    names = {"model": "a & b", "weights": "int4", "device": "some GPU", "driver": "driver 1", "software": True}
    return {**names, "work": WORK, "decode": list(runs), **more}


def time(tokens: int, kernel: str, detail: str, us: float) -> dict[str, Any]:
    return {"tokens": tokens, "kernel": kernel, "detail": detail, "ns": int(us * 2e3), "steps": 2}


def test_a_token_sees_the_whole_context_in_global_layers_and_the_window_in_others() -> None:
    assert StepWork.of_report(WORK).kv_bytes(5) == 4 * (5 + 5 + 5)
    assert StepWork.of_report(WORK).kv_bytes(20) == 4 * (20 + 20 + 8)


def test_a_prompt_computes_the_output_head_once() -> None:
    assert StepWork.of_report(WORK).prompt_flops(10) == 2 * (10 * 1_800 + 200)
    assert StepWork.of_report(WORK).decode_flops(10) == 2 * 10 * (1_800 + 200)


def test_another_device_is_taken_to_reach_the_same_fraction_of_its_own_limit() -> None:
    measured, other = reports.Limits(10_000.0, 1e9), reports.Limits(1_000.0, 1e9)
    (found,) = reports.estimates(report(run(1, 5.0)), measured, other, context=0, streams=[1])
    assert found.fraction == pytest.approx(0.5)  # 1,000 bytes at 10,000 a second are 0.1 s, and a step took 0.2
    assert (found.bound, found.tokens_per_s) == ("memory", pytest.approx(0.5))


def test_more_streams_than_were_measured_get_the_fraction_of_the_most() -> None:
    limits = reports.Limits(10_000.0, 1e9)
    runs = report(run(1, 5.0), run(4, 10.0, kv_bytes=1_000.0))
    few, many = reports.estimates(runs, limits, limits, context=0, streams=[3, 9])
    assert (few.measured_streams, many.measured_streams) == (4, 4)
    assert few.fraction == many.fraction == pytest.approx(0.5)


def test_rows_beyond_what_was_measured_say_so_and_are_not_in_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"reports": [report(run(1, 5.0), run(4, 20.0), limits=LIMITS)]}), encoding="utf-8")

    def verdict(target: float) -> str:
        options = ["--streams", "2", "4", "8", "--seed-target", str(target), "--bandwidth", "1e-5", "--context", "0"]
        monkeypatch.setattr(sys, "argv", ["report.py", "estimate", str(file), *options])
        reports.main()
        *rows, last = capsys.readouterr().out.splitlines()
        beyond = [int(row.split()[0]) for row in rows[2:] if "beyond what was measured" in row]
        assert beyond == [8]
        return last

    assert verdict(15).endswith("15 tok/s in sum: reached with 4 streams, by this estimate")
    assert "25 tok/s in sum: not reached with up to 4 streams, the most that were measured" in verdict(25)
    assert verdict(1e6).endswith("not reached, by this estimate")


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("limits",), None, "reports[0].limits: expected an object"),
        (("limits", "copy_bytes_per_s"), 0, "limits.copy_bytes_per_s: expected a number above 0, got 0"),
        (("decode",), [], "decode: expected a list of at least one"),
        (("work", "mixtures"), 8, "work.mixtures: expected a list"),
        (("work", "attending"), [{"window": "x"}], 'attending[0].window: expected a number, 0 or more, got "x"'),
        (("decode", 0), 7, "decode[0]: expected an object"),
        (("decode", 0, "streams"), True, "decode[0].streams: expected a positive whole number, got true"),
        (("decode", 0, "flops"), float("nan"), "decode[0].flops: expected a number above 0, got NaN"),
        (("decode", 0, "tokens_per_s", "median"), "x" * 99, "median: expected a number above 0, got"),
        (("software",), "no", 'software: expected true or false, got "no"'),
    ],
)
def test_a_report_with_something_else_in_it_is_refused_with_its_place(
    place: tuple[str | int, ...], value: object, named: str, tmp_path: Path
) -> None:
    changed: Any = report(run(1, 5.0), limits=dict(LIMITS), work=dict(WORK))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"reports": [changed]}), encoding="utf-8")
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        reports.reports_of(str(file))
    assert str(caught.value).startswith(f"{file}: ")
    assert named in str(caught.value)
    assert len(str(caught.value)) < len(str(file)) + 200


def test_a_report_that_does_not_tell_experts_from_other_weights_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    work = {"weight_bytes": 1_000, "layer_weights": 1_800, "head_weights": 200, "kv_token_bytes": 4, "windows": [0]}
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"reports": [report(run(1, 5.0), limits=LIMITS, work=work)]}), encoding="utf-8")
    with pytest.raises(argparse.ArgumentTypeError, match=r"reports\[0\].work.mixtures is missing"):
        reports.reports_of(str(file))


def test_what_is_written_of_a_steps_work_is_read_again(tmp_path: Path) -> None:
    mixtures, attending = (Mixture(8, 2, 1_600),), (KeysAndValues(8, 4),)
    work = StepWork(1_000, mixtures, 1_800, 200, attending, state_bytes=50)
    for one in (work, replace(work, mixtures=(), attending=())):
        file = tmp_path / "report.json"
        written = {"reports": [report(run(1, 5.0), limits=LIMITS, work=asdict(one))]}
        file.write_text(json.dumps(written), encoding="utf-8")
        assert StepWork.of_report(reports.reports_of(str(file))[0]["work"]) == one


def test_another_device_reads_the_experts_and_states_of_its_own_streams() -> None:
    limits = reports.Limits(1_000.0, 1e9)
    mixtures = [{"num_experts": 4, "num_chosen": 1, "nbytes": 800}]
    found = report(run(1, 1.0) | {"state_bytes": 100}, work=WORK | {"mixtures": mixtures, "state_bytes": 50})
    (two,) = reports.estimates(found, limits, limits, context=0, streams=[2])
    assert two.fraction == pytest.approx(1.1)  # 1,000 bytes of weights and 100 of states at 1,000 a second
    assert two.tokens_per_s == pytest.approx(2 / (1.350 + 0.200) * 1.1)  # two tokens choose 1 + 3/4 of 4 experts


def test_a_file_of_brackets_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(argparse.ArgumentTypeError, match="nested too deeply"):
        reports.reports_of(str(file))


def test_times_of_kernels_that_lack_something_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    times = [{**time(1, "kernel", "", 1.0), "steps": 0}]
    file.write_text(json.dumps({"reports": [report(run(1, 5.0), kernel_times=times)]}), encoding="utf-8")
    with pytest.raises(argparse.ArgumentTypeError, match=r"kernel_times\[0\].steps: expected a positive whole number"):
        reports.drawn("kernels", [str(file)])


def test_quality_keeps_the_rows_of_formats_that_are_done_where_a_later_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run_format(name: str, *_: object) -> quality.Run:
        if name == "gguf-F16":
            raise DeviceLostError("gone")
        log_probs = np.log(np.full((2, 4), 0.25, np.float32))
        scored = Likelihood(log_probs, np.zeros(2, np.int64), np.ones(2, bool))
        return quality.Run(scored, [(1,)], 0.0)

    file = tmp_path / "quality.json"
    arguments = ["--formats", "f32", "gguf-F16", "--questions", "1", "--greedy", "1", "--json", str(file)]
    monkeypatch.setattr(quality, "run_format", run_format)
    monkeypatch.setattr(sys, "argv", ["quality.py", *arguments])
    with pytest.raises(SystemExit, match="gone"):
        quality.main()
    done = [row["name"] for row in json.loads(file.read_text())["formats"]]
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert printed == done == ["bf16", "f16", "f32"]


def test_plots_are_xml_and_name_a_software_device() -> None:
    times = [time(tokens, f"kernel_{index}", "", 1.0 + index) for tokens in (1, 8) for index in range(12)]
    times += [time(1, "linear_vec_f16", "64x32", 5.0), time(1, "rms_norm_floats", "", 2.0)]
    found = report(run(1, 5.0), run(8, 30.0), kernel_times=times)
    for drawn in (plot.throughput([found, found]), plot.kernels(found)):
        words = [element.text or "" for element in ElementTree.fromstring(drawn).iter() if element.tag.endswith("text")]
        assert any("SOFTWARE device" in line for line in words)
        assert any("a & b" in line for line in words)


def test_attention_of_a_window_is_drawn_as_attention() -> None:
    assert plot.part_name(time(1, "attention_decode_f16_floats", "window 128", 1.0)) == "attention"


def test_parts_beyond_the_colours_are_drawn_as_others() -> None:
    times = [time(1, f"kernel_{index}", "", 10.0) for index in range(20)]
    drawn = ElementTree.fromstring(plot.kernels(report(kernel_times=times)))
    words = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert "others" in words
    assert "1 token: 200 µs in kernels" in words
