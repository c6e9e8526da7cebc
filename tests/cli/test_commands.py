"""The commands on the bundled model and the software device, as a user runs them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.cli.command import NO_DRIVER, SOFTWARE_DRIVERS, software_only, unicorn
from tests.golden.checkpoints import write_checkpoint
from unicorn_async.cli.bench_sheet import write_sheet
from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from tests.cli.conftest import Demo

needs_software_driver = pytest.mark.skipif(
    not SOFTWARE_DRIVERS, reason="Mesa's software Vulkan driver is not installed (Debian: mesa-vulkan-drivers)"
)
QUESTION = "What is 17 + 25?"
ON_SOFTWARE = ("--device", "llvmpipe")


@needs_software_driver
def test_generate_streams_the_answer_to_stdout_and_the_rest_to_stderr() -> None:
    result = unicorn("generate", "demo", QUESTION, "--chat", *ON_SOFTWARE, environ=software_only())
    assert result.status == 0, result.stderr
    assert "42" in result.stdout
    assert "SOFTWARE" in result.stderr
    assert "ended by stop" in result.stderr
    kernels = next(line for line in result.stderr.splitlines() if line.startswith("kernels "))
    assert "linear_" in kernels
    assert "attention_" in kernels


@needs_software_driver
def test_generate_reads_standard_input_and_prints_json() -> None:
    result = unicorn("generate", "demo", "-", "--chat", "--json", *ON_SOFTWARE, environ=software_only(), stdin=QUESTION)
    answer = json.loads(result.stdout)
    assert "42" in answer["text"]
    assert answer["finish_reason"] == "stop"
    assert answer["software"] is True
    assert len(answer["token_ids"]) > 1
    assert "logprobs" not in answer


@needs_software_driver
def test_generate_shows_the_log_probabilities_of_its_tokens() -> None:
    options = ("--chat", "--json", "--logprobs", "2", "--presence-penalty", "0.5", "--frequency-penalty", "0.5")
    answer = json.loads(unicorn("generate", "demo", QUESTION, *options, *ON_SOFTWARE, environ=software_only()).stdout)
    assert [token["id"] for token in answer["logprobs"]] == answer["token_ids"]
    first = answer["logprobs"][0]
    assert len(first["top"]) == 2
    assert first["top"][0] == {"id": first["id"], "text": first["text"], "logprob": first["logprob"]}
    assert first["logprob"] <= 0


@needs_software_driver
def test_bench_says_what_it_measured_and_on_what() -> None:
    sizes = ("--batch", "1,2", "--prompt", "16", "--tokens", "4", "--repeat", "2", "--json")
    result = unicorn("bench", "demo", *sizes, *ON_SOFTWARE, environ=software_only())
    assert result.status == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["software"] is True
    assert "llvmpipe" in report["device"]
    assert any(name.startswith("linear_") for name in report["kernels"])
    assert [entry["batch"] for entry in report["results"]] == [1, 2]
    for entry in report["results"]:
        assert entry["prompt_tokens_per_s"]["median"] > 0
        assert entry["decode_tokens_per_s"]["lowest"] <= entry["decode_tokens_per_s"]["highest"]
        assert 0 < entry["decode_device_busy"]["median"] <= 1.1


@needs_software_driver
def test_bench_writes_a_sheet_that_tells_the_machine_and_no_paths(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.md"
    sizes = ("--batch", "1", "--prompt", "16", "--tokens", "2", "--repeat", "1", "--report", str(sheet))
    result = unicorn("bench", "demo", *sizes, *ON_SOFTWARE, environ=software_only())
    assert result.status == 0, result.stderr
    text = sheet.read_text()
    assert text.startswith("# unicorn-demo on llvmpipe")
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles == [
        f"## {title}"
        for title in ("Machine", "Model", "What the device can do", "Speed", "Where the time of a step goes")
    ]
    assert "threads" in text and "measured limits: copy" in text and "steps of up to 16 tokens" in text
    assert all(line in text for line in result.stdout.splitlines())
    assert str(Path.home()) not in text and str(tmp_path) not in text
    refused = unicorn("bench", "demo", "--report", str(tmp_path), environ=NO_DRIVER)
    assert refused.status == 2 and "expected a file in a folder that is there" in refused.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is full here")
def test_a_sheet_that_cannot_be_written_is_printed_instead(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="--report /dev/full: No space left"):
        write_sheet(Path("/dev/full"), "# a sheet")
    assert "# a sheet" in capsys.readouterr().err


@needs_software_driver
def test_bench_counts_no_kernels_of_its_warm_up() -> None:
    sizes = ("--batch", "1", "--prompt", "16", "--tokens", "2", "--repeat", "2", "--kernels", "--json")
    result = unicorn("bench", "demo", *sizes, *ON_SOFTWARE, environ=software_only())
    assert result.status == 0, result.stderr
    assert {time["steps"] for time in json.loads(result.stdout)["kernels"] if time["tokens"] == 16} == {2}


@needs_software_driver
@pytest.mark.parametrize(("option", "needed"), [("--prompt", 5001), ("--tokens", 5009)])
def test_bench_refuses_what_does_not_fit_the_context_before_the_model_is_loaded(option: str, needed: int) -> None:
    result = unicorn("bench", "demo", option, "5000", "--batch", "1", *ON_SOFTWARE, environ=software_only())
    assert result.status == 1
    expected = f"unicorn bench: {option} 5000: a context of {needed} tokens is needed, there is one of 2048\n"
    assert result.stderr == expected


@pytest.mark.parametrize(
    ("batch", "given", "limit"),
    [
        ("1,9", ("--max-num-seqs", "2"), "--max-num-seqs 2"),
        ("24", ("--max-num-batched-tokens", "16"), "--max-num-batched-tokens 16"),
        ("600", (), "--max-num-batched-tokens 512"),
    ],
)
def test_bench_keeps_to_the_limits_of_a_step(batch: str, given: tuple[str, ...], limit: str) -> None:
    result = unicorn("bench", "demo", "--batch", batch, *given, environ=NO_DRIVER)
    assert result.status == 1
    expected = (
        f"unicorn bench: --batch {max(batch.split(','), key=int)}: more sequences than {limit} allows in a step\n"
    )
    assert result.stderr == expected


@needs_software_driver
@pytest.mark.parametrize("limit", ["--max-num-seqs", "--max-num-batched-tokens"])
def test_bench_measures_what_the_limits_of_a_step_allow_where_nothing_else_was_asked_for(limit: str) -> None:
    sizes = (limit, "2", "--prompt", "4", "--tokens", "2", "--repeat", "1", "--json")
    result = unicorn("bench", "demo", *sizes, *ON_SOFTWARE, environ=software_only())
    assert result.status == 0, result.stderr
    assert [entry["batch"] for entry in json.loads(result.stdout)["results"]] == [1]


@needs_software_driver
def test_devices_as_json() -> None:
    devices = json.loads(unicorn("devices", "--json", environ=software_only()).stdout)
    assert [device["software"] for device in devices if device["type"] != "npu"] == [True]


def test_inspect_needs_no_vulkan() -> None:
    result = unicorn("inspect", "demo", environ=NO_DRIVER)
    assert result.status == 0
    assert "Gemma3ForCausalLM" in result.stdout
    assert "layers 0 to 7 are alike" in result.stdout
    assert "no usable Vulkan driver" in result.stderr


def test_inspect_ends_with_the_status_of_a_refusal_behind_its_report(tmp_path: Path) -> None:
    model = write_checkpoint("llama", tmp_path)
    result = unicorn("inspect", str(model), environ=NO_DRIVER)
    assert f"refused: {model}: tokenizer.json is missing" in result.stdout
    assert "lm_head.weight" in result.stdout
    assert result.status == 1


@needs_software_driver
def test_inspect_as_json_has_every_tensor_and_its_place() -> None:
    report = json.loads(unicorn("inspect", "demo", "--json", environ=software_only()).stdout)
    by_name = {tensor["name"]: tensor for tensor in report["tensors"]}
    assert by_name["model.layers.3.self_attn.k_proj.weight"]["destination"] == "layers.3.qkv"
    assert by_name["model.norm.weight"]["transform"] == "BF16 to F32"
    assert sum(tensor["nbytes"] for tensor in report["tensors"]) == report["bytes_to_read"]
    assert report["devices"][0]["max_context"] > 0


@pytest.mark.usefixtures("ctrl_c")
@needs_software_driver
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_demo_answers_and_a_signal_ends_it_in_order(demo: Demo, number: signal.Signals) -> None:
    address = await demo.address()
    body = {"messages": [{"role": "user", "content": QUESTION}]}
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{address}/v1/chat/completions", json=body)
        assert "42" in answer.json()["choices"][0]["message"]["content"]
        health = (await client.get(f"{address}/health")).json()
        assert health["device"]["software"] is True
        assert any(name.startswith("linear_") for name in health["kernels"])
    demo.process.send_signal(number)
    _, rest = await demo.process.communicate()
    printed = demo.printed + rest.decode()
    assert demo.process.returncode == 0
    assert "SOFTWARE" in printed
    assert "Traceback" not in printed


@pytest.mark.usefixtures("ctrl_c")
@needs_software_driver
async def test_a_signal_amid_the_opening_of_a_model_ends_the_server_in_order(demo: Demo) -> None:
    await demo.address()  # the port comes first
    demo.process.send_signal(signal.SIGTERM)
    _, rest = await demo.process.communicate()
    assert (demo.process.returncode, "Traceback" in rest.decode()) == (0, False)


@needs_software_driver
def test_generate_leaves_its_quantised_weights_for_the_next_start(tmp_path: Path) -> None:
    environ = {**software_only(), "XDG_CACHE_HOME": str(tmp_path)}
    command = ("generate", "demo", QUESTION, "--chat", "--weights", "int8", *ON_SOFTWARE)
    first, second = unicorn(*command, environ=environ), unicorn(*command, environ=environ)
    assert "weight cache" not in second.stderr  # the first may have had them there with its last token
    assert second.stdout == first.stdout
    entries = json.loads(unicorn("cache", "list", "--json", environ=environ).stdout)
    assert [entry["usable"] for entry in entries] == [True]
