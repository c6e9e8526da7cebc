"""Rounds beside llama.cpp: what its programs do not print ends the script with a message, and no round is lost."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import peers

BENCH = "\n".join(
    json.dumps({"n_gen": number, "avg_ts": rate, "gpu_info": "some GPU", "build_commit": "b1"})
    for number, rate in ((0, 100.0), (64, 10.0))
)
ROW = "|   256 |     64 |    {streams} |  2560 |  1.0 |  100.00 |  1.0 |  {rate} |  2.0 |  300.00 |\n"


def options(tmp_path: Path, *streams: int) -> argparse.Namespace:
    (tmp_path / "model.gguf").write_bytes(b"model")
    for program in ("llama-bench", "llama-batched-bench"):
        (tmp_path / program).touch()
    return argparse.Namespace(
        file=tmp_path / "model.gguf",
        llama=tmp_path,
        prompt=512,
        tokens=64,
        streams=list(streams),
        context=256,
        json=tmp_path / "found.json",
    )


def test_rates_are_read_from_what_llama_cpp_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ROW.format(streams=8, rate="40.00") + ROW.format(streams=8, rate="55.50")  # the first pass warms up
    monkeypatch.setattr(peers, "run", lambda command: rows if "batched" in command[0] else BENCH)
    found = peers.run_llama(options(tmp_path, 1, 8))
    assert (found.prompt, found.decode, found.device) == (100.0, {1: 10.0, 8: 55.5}, "some GPU")


def test_a_number_of_streams_without_a_row_ends_the_script_in_its_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ROW.format(streams=8, rate="55.50") + "failed to decode the batch"
    monkeypatch.setattr(peers, "run", lambda command: rows if "batched" in command[0] else BENCH)
    with pytest.raises(SystemExit, match=r"printed no rate of \[32\] streams, but:\n[^$]*failed to decode the batch"):
        peers.run_llama(options(tmp_path, 1, 8, 32))


def test_a_program_that_prints_nothing_ends_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "run", lambda _: "")
    with pytest.raises(SystemExit, match="llama-bench: expected rates of prompts and of decoding, got 0 lines"):
        peers.run_llama(options(tmp_path, 1))


def test_a_program_that_takes_too_long_ends_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 900)

    monkeypatch.setattr(subprocess, "run", wait)
    with pytest.raises(SystemExit, match="timed out after 900 seconds"):
        peers.run(["llama-bench"])


def test_rounds_before_one_that_fails_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = peers.Rates(100.0, {1: 10.0}, "some GPU", "b1")
    theirs = iter([rates])

    def run_llama(_: argparse.Namespace) -> peers.Rates:
        try:
            return next(theirs)
        except StopIteration:
            raise SystemExit("lost") from None

    given = options(tmp_path, 1)
    arguments = [str(given.file), f"--llama={tmp_path}", "--streams=1", "--repeat=2", f"--json={given.json}"]
    monkeypatch.setattr(peers, "check_fit", lambda *_: None)
    monkeypatch.setattr(peers, "run_ours", lambda _: rates)
    monkeypatch.setattr(peers, "run_llama", run_llama)
    monkeypatch.setattr(sys, "argv", ["peers.py", *arguments])
    with pytest.raises(SystemExit, match="lost"):
        peers.main()
    found = json.loads(given.json.read_text(encoding="utf-8"))
    assert [len(found[name]) for name in ("ours", "llama.cpp")] == [1, 1]
