"""Files for results: what can't be written is refused before anything is measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from tests.tools.test_benchmark_arguments import refusal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

from out_file import out_file


@pytest.mark.parametrize(
    "command",
    [
        "decode demo --json",
        "batched demo --json",
        "prefill demo --json",
        "model demo --json",
        "host_time demo --json",
        "host_time demo --trace",
        "smooth_decode demo --json",
        "peers x --json",
        "kernels --json",
        "kernels_attention --json",
        "dispatch_floor --json",
        "matrix_ceilings --json",
        "interleave demo --json",
        "first_start x --json",
        "quality --json",
        "npu_host --json",
    ],
)
def test_a_file_in_a_directory_that_is_not_there_is_refused_at_once(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, arguments = command.split(maxsplit=1)
    status, line = refusal(script, f"{arguments} /nonexistent/x", monkeypatch, capsys)
    assert status == 2
    assert "/nonexistent/x: there is no directory /nonexistent" in line


def test_a_file_is_not_touched_before_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("results", encoding="utf-8")
    assert out_file(str(tmp_path / "there")).read_text(encoding="utf-8") == "results"
    assert not out_file(str(tmp_path / "new")).exists()
    with pytest.raises(argparse.ArgumentTypeError, match="is a directory"):
        out_file(str(tmp_path))


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(argparse.ArgumentTypeError, match="can't be written"):
        out_file(str(tmp_path / "new"))
