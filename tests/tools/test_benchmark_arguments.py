"""What the benchmarks refuse before they measure: one line that says why, and status 2, or 1 for a device's reasons."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tools.test_benchmark_reports import LIMITS, report, run
from unicorn_async.errors import ConfigError, DeviceError, UnicornError
from unicorn_async.resources import demo_model_dir

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))


if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.gpu.device import Device

WHOLE = "expected a positive whole number"


def refusal(
    script: str, arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    """The status that a script, or a part of one, ends with, and the last line that it prints."""
    script, *part = script.split()
    main: Callable[[], object] = import_module(script).main
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *part, *arguments.split()])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code, capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("script", "arguments", "named"),
    [
        ("speed", "decode demo --tokens 0", WHOLE),
        ("speed", "decode demo --repeat 0", WHOLE),
        ("speed", "decode demo --context 256 0", WHOLE),
        ("speed", "decode demo --layers -1", WHOLE),
        ("speed", "decode /nonexistent", "/nonexistent: no such folder or file, and none of demo, gemma3-27b"),
        ("speed", "decode demo --streams 0", WHOLE),
        ("speed", "prompt demo --prompt 0", WHOLE),
        ("host", "steps demo --streams 0", WHOLE),
        ("host", "steps demo --weights int8 int4", "unrecognized arguments: int4"),
        ("host", "steps demo --kernels", "unrecognized arguments: --kernels"),
        ("host", "steps demo --repeat 2", "unrecognized arguments: --repeat 2"),
        ("speed", "smooth demo --weights int8 int4", "unrecognized arguments: int4"),
        ("speed", "smooth demo --kernels", "unrecognized arguments: --kernels"),
        ("host", "steps demo --tokens 1", "--tokens: expected 2 steps or more, between which there is a gap, got 1"),
        ("host", "steps nothing", "nothing: no such folder or file"),
        ("speed", "smooth demo --limits nan", "expected a finite number, 0 or more, got 'nan'"),
        ("kernels", "linear --tokens 0", WHOLE),
        ("kernels", "linear --shape 64x0", "expected rows x columns, such as 4096x14336, got '64x0'"),
        ("kernels", "linear --shape 64", "expected rows x columns, such as 4096x14336, got '64'"),
        ("kernels", "linear --format Q9", "invalid choice: 'Q9'"),
        ("kernels", "linear --shape abc", "expected rows x columns, such as 4096x14336, got 'abc'"),
        ("kernels", "attention --context 0", WHOLE),
        ("kernels", "attention --shape a", "expected query heads:kv heads:size of a head, as in 32:8:128, got 'a'"),
        ("kernels", "attention --shape 4:0:64", "size of a head, as in 32:8:128, got '4:0:64'"),
        ("kernels", "attention --shape 4:3:64", "4:3:64: expected a multiple of 3 query heads, got 4"),
        ("kernels", "floor --megabytes 4 4", "expected each size to be larger than the one before it"),
        ("kernels", "floor --megabytes 0.1 0.10002", "expected the last size to be 1.25 times the one before or more"),
        ("kernels", "floor --megabytes 4", "expected two sizes or more"),
        ("kernels", "floor --megabytes 0 -1", "expected a finite number, 0 or more, got '-1'"),
        ("kernels", "floor --repeats 0", WHOLE),
        ("load", "x --repeat 0", WHOLE),
        ("load", "x --threads 0", WHOLE),
        ("load", "x --minutes -1", "expected a finite number, 0 or more, got '-1'"),
        ("load", "x --back -1", "expected a finite number, 0 or more, got '-1'"),
        ("load", "x --back 1e9", "--back: 1e+09 GB are more than the"),
        ("load", "x --methods enginee,bare-memory", "safetensors,llama.cpp, got 'enginee'"),
        ("load", "x --methods engine,engine-direct --only warm", "--methods: engine-direct: not for this model"),
        ("load", "x --methods llama.cpp", "--methods: llama.cpp: not for this model with these options"),
        ("load", "x --llama true", "expected a command with {file} for the model's file, got 'true'"),
        ("load", "/nonexistent", "/nonexistent: no such directory"),
        ("connections", "--clients 0", WHOLE),
        ("connections", "--seconds 0", "expected a number above 0, got '0'"),
        ("serving", "x --streams 0", WHOLE),
        ("serving", "/nonexistent", "/nonexistent: no such file"),
        ("first_answer", "x --repeat 0", WHOLE),
        ("first_answer", "x --states hot", "invalid choice: 'hot'"),
        ("first_answer", "/nonexistent", "/nonexistent: no such directory"),
        ("first_answer", "x --llama-server true", "expected a command with {file} for the model's file, got 'true'"),
        ("first_token", "load x --repeat 0", WHOLE),
        ("first_token", "load x --short 0", WHOLE),
        ("first_token", "load x --long -1", WHOLE),
        ("first_token", "load x --tokens 0", WHOLE),
        ("first_token", "load x --tokens 4", "--tokens: expected more than 4, after which there is a rate, got 4"),
        ("first_token", "load {model} --long 100000000", "positions, 100000320 are asked for"),
        ("first_token", "caches x --repeat 0", WHOLE),
        ("first_token", "caches x --prompt 0", WHOLE),
        ("first_token", "caches x --later nan", "expected a finite number, 0 or more, got 'nan'"),
        ("first_token", "caches /nonexistent", "/nonexistent: no such folder or file"),
        ("first_token", "caches {model} --prompt 100000000", "positions, 100000004 are asked for"),
        ("first_token", "caches {model} --device nonsense", "device 'nonsense': no device has this in its name"),
        ("peers", "x --streams 1 0", WHOLE),
        ("peers", "x --repeat 0", WHOLE),
        ("peers", "x --llama /nonexistent", "--llama: /nonexistent has no llama-bench"),
        ("far_attention", "gpu demo --tokens 0", WHOLE),
        ("far_attention", "gpu demo --repeat -1", WHOLE),
        ("far_attention", "gpu demo --attention npu", "--attention: expected vulkan:NAME, got npu"),
        ("far_attention", "gpu demo --attention elsewhere", "got 'elsewhere'"),
        ("host", "server --tokens 0", WHOLE),
        ("host", "server --clients 1 0", WHOLE),
        ("host", "server --transports sse post", "invalid choice: 'post'"),
        ("quality", "--questions 0", WHOLE),
        ("quality", "--greedy -1", "expected a whole number, 0 or more, got '-1'"),
        ("far_attention", "npu --repeat 0", WHOLE),
        ("far_attention", "npu --head-dim 7", "head_dim: expected one of 64, 128, 256, got 7"),
        ("report", "estimate /nonexistent", "No such file"),
        ("report", "estimate {demo} --bandwidth 0", "expected a number above 0, got '0'"),
        ("report", "estimate {demo} --bandwidth nan", "expected a finite number, 0 or more, got 'nan'"),
        ("report", "estimate {demo} --tflops -1", "expected a finite number, 0 or more, got '-1'"),
        ("report", "estimate {demo} --streams -4", WHOLE),
        ("report", "estimate {demo} --context -5", "expected a whole number, 0 or more, got '-5'"),
        (
            "report",
            "estimate {none}",
            "none.json: not what speed.py --json writes: reports: expected a list of at least one",
        ),
        ("report", "estimate {other}", "other.json: not what speed.py --json writes: reports[0].model is missing"),
        ("report", "estimate {damaged}", "damaged.json: Expecting value"),
        ("report", "throughput {out} /nonexistent", "No such file or directory: '/nonexistent'"),
        (
            "report",
            "throughput {out} {other}",
            "other.json: not what speed.py --json writes: reports[0].model is missing",
        ),
        ("report", "throughput {out} {damaged}", "damaged.json: Expecting value"),
        ("report", "kernels {out} {demo}", "expected one report with the times of kernels, found 0 of 1"),
        ("report", "throughput /nonexistent/out.svg {demo}", "No such file or directory: '/nonexistent/out.svg'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    script: str,
    arguments: str,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {
        "demo": json.dumps({"reports": [report(run(1, 5.0), limits=LIMITS)]}),
        "none": '{"reports": []}',
        "other": '{"reports": [{"prompt": []}]}',
        "damaged": "report",
    }
    paths = {name: tmp_path / f"{name}.json" for name in files}
    for name, text in files.items():
        paths[name].write_text(text, encoding="utf-8")
    status, line = refusal(
        script, arguments.format(model=demo_model_dir(), out=tmp_path / "out.svg", **paths), monkeypatch, capsys
    )
    assert status == 2
    assert named in line


def test_kernels_that_no_name_fits_are_an_error(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = f"linear --device {device.info.index} --shape 64x64 --tokens 1 --only nonsense"
    monkeypatch.setattr(sys, "argv", ["kernels.py", *arguments.split()])
    with pytest.raises(ConfigError, match="--only nonsense: no kernel with this name, nothing was timed"):
        import_module("kernels").main()


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("load", "{model} --device nonsense"),
        ("first_token", "load {model} --device nonsense"),
        ("far_attention", "gpu demo --device nonsense"),
        ("far_attention", "gpu demo --attention vulkan:nonsense"),
    ],
)
def test_device_that_is_not_there_is_refused_before_anything_is_loaded(
    script: str, arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, line = refusal(script, arguments.format(model=demo_model_dir()), monkeypatch, capsys)
    assert status == 1
    assert line.startswith(f"{script}.py")
    assert ": device 'nonsense': no device has this in its name; there are: 0: " in line


@pytest.mark.parametrize(("error", "expected"), [(ConfigError("max_context: 9\nof 5"), 2), (DeviceError("lost"), 1)])
def test_what_an_engine_refuses_ends_a_script_with_one_line(
    error: UnicornError, expected: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["somewhere/speed.py"])
    with pytest.raises(SystemExit) as caught:
        import_module("command_line").run_script(fail)
    assert caught.value.code == expected
    assert capsys.readouterr().err == f"speed.py: {' '.join(str(error).split())}\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("speed.py decode demo --device nothing", "speed.py: device 'nothing'"),
        ("speed.py prompt demo --device {device} --prompt 99999", "speed.py: max_context: the model has"),
    ],
)
def test_what_is_asked_for_in_vain_ends_a_script_without_a_traceback(
    arguments: str, named: str, device: Device
) -> None:
    script, *options = arguments.format(device=device.info.index).split()
    command = [sys.executable, str(BENCHMARKS / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert "Traceback" not in done.stderr
    assert (done.returncode, named in done.stderr) == (2, True), done.stderr


def test_ctrl_c_ends_a_script_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as caught:
        import_module("command_line").run_script(interrupt)
    assert caught.value.code == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_script_that_is_told_to_end_leaves_its_blocks(number: signal.Signals) -> None:
    kept = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    left = []

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 10.0)
        finally:
            left.append(True)

    try:
        with pytest.raises(SystemExit) as caught:
            import_module("command_line").run_script(work)
    finally:
        for one, handler in kept.items():
            signal.signal(one, handler)
    assert (caught.value.code, left) == (128 + number, [True])
