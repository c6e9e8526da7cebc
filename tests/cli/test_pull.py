"""`unicorn pull`, `list`, `rm` and `serve --pull`, against a local server that speaks the hub's endpoints."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
from contextlib import nullcontext
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.checkpoint.gguf.builders import U32, Tensor, write
from tests.checkpoint.gguf.golden_files import gguf_metadata, gguf_tensors
from tests.cli.command import RUN, software_only, unicorn
from tests.hub.hub_server import HubServer
from tests.patience import wait_until
from unicorn_async.cli.pull import Teller
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.resources import demo_model_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GGUF = {"m-Q4_K_M.gguf": b"GGUF" + bytes(3000), "m-Q8_0.gguf": b"GGUF" + bytes(5000)}
UNKNOWN = {
    "config.json": b'{"architectures": ["UnheardOfForCausalLM"], "quantization_config": {"quant_method": "mxfp4"}}',
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(5000),
}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    demo = {path.name: path.read_bytes() for path in demo_model_dir().iterdir() if path.is_file()}
    with HubServer({"org/m-GGUF": GGUF, "org/tiny": demo, "org/unknown": UNKNOWN}) as server:
        yield server


@pytest.fixture
def environ(hub: HubServer, tmp_path: Path) -> dict[str, str]:
    home = {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_TOKEN": "",
        "HF_HUB_OFFLINE": "",
    }
    return {**home, "HF_ENDPOINT": hub.endpoint, "XDG_CACHE_HOME": str(tmp_path / "cache"), **software_only()}


def test_models_are_pulled_listed_and_removed(environ: dict[str, str]) -> None:
    pulled = unicorn("pull", "org/m-GGUF", environ=environ)
    assert pulled.status == 0
    assert pulled.stdout.endswith("/m-Q4_K_M.gguf\n")
    assert "org/m-GGUF: 3.0 kB, 3.0 kB of it new" in pulled.stderr
    assert unicorn("pull", "org/m-GGUF:Q8_0", environ=environ).status == 0
    assert unicorn("list", environ=environ).stdout.splitlines() == [
        "model              kind    size",
        "org/m-GGUF:Q4_K_M  Q4_K_M  3.0 kB",
        "org/m-GGUF:Q8_0    Q8_0    5.0 kB",
    ]
    removed = unicorn("rm", "org/m-GGUF:Q8_0", environ=environ)
    assert (removed.status, removed.stdout) == (0, "removed org/m-GGUF:Q8_0, 5.0 kB\n")
    listed = json.loads(unicorn("list", "--json", environ=environ).stdout)
    assert listed == [{"name": "org/m-GGUF", "kind": "Q4_K_M", "nbytes": 3004, "is_whole": True}]
    assert unicorn("rm", "org/m-GGUF", environ=environ).status == 0
    assert "no models in " in unicorn("list", environ=environ).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pull", "org/unknown"), "architectures ['UnheardOfForCausalLM'] is not supported"),
        (("pull", "org/m-GGUF:Q5_0"), "give one of org/m-GGUF:Q4_K_M"),
        (("pull", "../m"), "expected ORG/NAME"),
        (("rm", "org/m"), "org/m: not in "),
        (("serve", "org/none", "--pull", "--port", "0"), "org/none"),
        (("serve", "org/unknown", "--pull", "--port", "0"), "architectures ['UnheardOfForCausalLM'] is not supported"),
        (("serve", "--pull", "--models-dir", "."), "--pull: there is no MODEL to bring"),
        (("generate", "org/tiny", "x"), "Nothing is downloaded unasked; bring it with: unicorn pull org/tiny"),
    ],
)
def test_what_can_t_be_done_is_one_line(
    arguments: tuple[str, ...], words: str, environ: dict[str, str], hub: HubServer
) -> None:
    result = unicorn(*arguments, environ=environ)
    assert result.status == 1
    assert words in result.stderr and "Traceback" not in result.stderr
    assert not [name for name in hub.fetched() if name.endswith((".safetensors", ".gguf"))]


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ({"general.architecture": "unheard-of"}, {}, "'unheard-of' is not supported"),
        (
            gguf_metadata("llama"),
            {**gguf_tensors("llama", "F16"), "x": Tensor(35, (256,), bytes(66))},
            "dtype TQ2_0 is",
        ),
        ({**gguf_metadata("gemma3"), "gemma3.expert_count": U32(8)}, gguf_tensors("gemma3", "F16"), "experts are not"),
        (gguf_metadata("llama"), gguf_tensors("llama", "F16"), None),
        ({}, {}, None),  # damaged, which who loads it says
    ],
)
def test_a_gguf_file_that_can_t_be_run_is_known_by_its_header(
    metadata: dict[str, object], tensors: dict[str, Tensor], message: str | None, tmp_path: Path
) -> None:
    path = write(tmp_path / "m.gguf", metadata, tensors)
    refused = pytest.raises(UnsupportedModelError, match=message) if message else nullcontext()
    with path.open("rb") as begun, refused:
        Teller().check_gguf("m.gguf", path.stat().st_size, begun, is_whole=True)


@pytest.mark.parametrize("kept", [100, 5000])
def test_a_header_that_is_not_there_yet_or_of_a_part_refuses_nothing(kept: int, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf_metadata("llama"), dict(list(gguf_tensors("llama", "F16").items())[:3]))
    Teller().check_gguf("m.gguf", path.stat().st_size, io.BytesIO(path.read_bytes()[:kept]), is_whole=False)


async def test_a_server_brings_its_model_and_asks_nobody_when_it_is_there(
    environ: dict[str, str], hub: HubServer
) -> None:
    asked = []
    for _ in range(2):
        arguments = ("serve", "org/tiny", "--pull", "--port", "0", "--device", "0", "--no-cache")
        process = await asyncio.create_subprocess_exec(
            *RUN, *arguments, env={**os.environ, **environ}, stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        printed = ""
        while not (found := re.search(r"^address +(http://\S+)", printed, re.MULTILINE)):
            line = await process.stderr.readline()
            assert line, printed
            printed += line.decode()
        async with httpx.AsyncClient() as client:
            await asyncio.to_thread(wait_until, lambda url=found[1]: httpx.get(f"{url}/ready").is_success)
            models = (await client.get(f"{found[1]}/v1/models")).json()["data"]
        process.send_signal(signal.SIGINT)
        await process.communicate()
        assert models[0]["id"] == "org/tiny"
        assert hub.fetched().count("model.safetensors") == 1
        asked.append(len(hub.asked))
    assert asked[0] == asked[1]
