"""Files for results: what can't be written is refused before anything is measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from tests.tools.test_benchmark_arguments import refusal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

from command_line import out_file


@pytest.mark.parametrize(
    "command",
    [
        "speed decode demo --json",
        "speed prompt demo --json",
        "speed smooth demo --json",
        "host steps demo --json",
        "host steps demo --trace",
        "load x --json",
        "peers x --json",
        "kernels linear --json",
        "kernels attention --json",
        "kernels floor --json",
        "kernels ceilings --json",
        "far_attention gpu demo --json",
        "far_attention npu --json",
        "first_answer x --json",
        "serving x --json",
        "soak --json",
        "connections --json",
        "first_token caches x --json",
        "first_token load x --json",
        "quality --json",
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
