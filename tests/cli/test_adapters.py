"""LoRA adapters on the command line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tests.golden.adapters import BLENDS, write_adapter
from tests.golden.checkpoints import write_checkpoint
from unicorn_async.cli.adapters import lora_spec
from unicorn_async.cli.options import add_engine_options, engine_config
from unicorn_async.lora_spec import LoraSpec

from .command import NO_DRIVER, unicorn


@pytest.mark.parametrize(
    ("text", "path", "weight"),
    [
        ("poet", "poet", 1.0),
        ("some/one=0.5", "some/one", 0.5),
        ("a=b=-1e-1", "a=b", -0.1),
        ("someone/poet=2", "someone/poet", 2.0),
    ],
)
def test_an_adapter_may_have_a_weight(text: str, path: str, weight: float) -> None:
    assert lora_spec(text) == LoraSpec(Path(path), weight)


def test_a_directory_s_name_may_look_like_a_weight(tmp_path: Path) -> None:
    (tmp_path / "poet=2").mkdir()
    assert lora_spec(f"{tmp_path}/poet=2") == LoraSpec(tmp_path / "poet=2")
    assert lora_spec(f"{tmp_path}/poet=2=0.5") == LoraSpec(tmp_path / "poet=2", 0.5)


@pytest.mark.parametrize("text", ["poet=", "poet=much", "poet=nan", "poet=inf", "poet=1001"])
def test_a_weight_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected DIR or DIR=WEIGHT with a number"):
        lora_spec(text)


def test_adapters_reach_the_engine_in_their_order() -> None:
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    config = engine_config(parser.parse_args(["--lora", "a=0.5", "--lora", "b", "--lora", "a"]))
    assert config.loras == (LoraSpec(Path("a"), 0.5), LoraSpec(Path("b")), LoraSpec(Path("a")))
    assert engine_config(parser.parse_args([])).loras == ()


def test_inspect_shows_what_adapters_change(tmp_path: Path) -> None:
    model = str(write_checkpoint("llama", tmp_path / "model"))
    loras = [f"{write_adapter('llama', case, tmp_path / case.name)}={case.weight}" for case in BLENDS["llama"]]
    options = [text for lora in loras for text in ("--lora", lora)]
    report = unicorn("inspect", model, *options, environ=NO_DRIVER).stdout
    assert "adapter first: weight 0.75, changes 14 tensors, rank 8, scale 2, in " in report
    assert "model.layers.*.mlp.down_proj.weight        3 of rank 16, scale 1" in report
    assert "layers.0.qkv, BF16 with 2 adapters to BF16" in report
    assert "embed, BF16 with 1 adapter to BF16" in report
    facts = json.loads(unicorn("inspect", model, *options, "--json", environ=NO_DRIVER).stdout)
    assert [adapter["weight"] for adapter in facts["adapters"]] == [0.75, -1.25]
    tensor = {"name": "model.layers.2.mlp.up_proj.weight", "rank": 16, "scale": 1.0}
    assert tensor in facts["adapters"][1]["tensors"]


def test_an_adapter_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    model = str(write_checkpoint("llama", tmp_path / "model"))
    done = unicorn("inspect", model, "--lora", str(tmp_path), environ=NO_DRIVER)
    assert (done.status, done.stderr) == (1, f"unicorn inspect: adapter {tmp_path}: has no adapter_config.json\n")
