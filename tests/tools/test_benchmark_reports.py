"""What is made of the benchmarks' reports: estimates for another device, and plots."""

from __future__ import annotations

import argparse
import json
import sys
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
from model_runs import StepWork

WORK = {
    "weight_bytes": 1_000,
    "layer_weights": 1_800,
    "head_weights": 200,
    "kv_token_bytes": 4,
    "windows": (0, 0, 8),
}
LIMITS = {"copy_bytes_per_s": 10_000.0, "fma_flops_per_s": 1e9, "matrix_flops_per_s": 0.0}


def run(streams: int, rate: float, kv_bytes: float = 0.0) -> dict[str, Any]:
    return {
        "streams": streams,
        "context": 16.0,
        "tokens_per_s": {"median": rate, "lowest": 0.9 * rate, "highest": 1.1 * rate},
        "weight_bytes": 1_000,
        "kv_bytes": kv_bytes,
        "flops": 4_000.0 * streams,
    }


def report(*runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    names = {"model": "a & b", "weights": "int4", "device": "some GPU", "driver": "driver 1", "software": True}
    return {**names, "work": WORK, "decode": list(runs), **more}


def time(tokens: int, kernel: str, detail: str, us: float) -> dict[str, Any]:
    return {"tokens": tokens, "kernel": kernel, "detail": detail, "ns": int(us * 2e3), "steps": 2}


def test_a_token_sees_the_whole_context_in_global_layers_and_the_window_in_others() -> None:
    assert StepWork(**WORK).kv_bytes(5) == 4 * (5 + 5 + 5)
    assert StepWork(**WORK).kv_bytes(20) == 4 * (20 + 20 + 8)


def test_a_prompt_computes_the_output_head_once() -> None:
    assert StepWork(**WORK).prompt_flops(10) == 2 * (10 * 1_800 + 200)
    assert StepWork(**WORK).decode_flops(10) == 2 * 10 * (1_800 + 200)


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
        (("work", "windows"), [], "work.windows: expected a list of at least one"),
        (("work", "windows"), [0, "x"], 'work.windows[1]: expected a number, 0 or more, got "x"'),
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
