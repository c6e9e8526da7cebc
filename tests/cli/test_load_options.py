"""Options of a load on the command line, and what `inspect` says about reading."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from unicorn_async.cli import serve
from unicorn_async.cli.options import add_engine_options, engine_config
from unicorn_async.config import SpeculationMode
from unicorn_async.errors import ConfigError
from unicorn_async.pooling import Pooling

from .command import SOFTWARE_DRIVERS, software_only, unicorn


def test_options_of_the_load_reach_the_engine() -> None:
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    config = engine_config(parser.parse_args(["--reader-threads", "3", "--load-trace", "load.json"]))
    assert (config.num_reader_threads, config.load_trace) == (3, Path("load.json"))
    config = engine_config(parser.parse_args(["--vram", "6G", "--gtt", "512M", "--validation"]))
    assert (config.vram_bytes, config.gtt_bytes, config.validation) == (6 << 30, 512 << 20, True)
    config = engine_config(parser.parse_args(["--no-cache", "--cache-bytes", "2G"]))
    assert (config.weight_cache, config.cache_bytes) == (False, 2 << 30)
    assert not config.keeps_blocks
    config = engine_config(parser.parse_args(["--kv-host", "8G", "--kv-disk", "50G"]))
    assert (config.kv_host_bytes, config.kv_disk_bytes) == (8 << 30, 50 << 30)
    config = engine_config(parser.parse_args([]))
    assert (config.weight_cache, config.cache_bytes) == (True, None)
    assert (config.num_reader_threads, config.load_trace) == (None, None)
    assert config.tuning
    assert not engine_config(parser.parse_args(["--no-tuning"])).tuning
    assert config.pooling is None
    assert engine_config(parser.parse_args(["--pooling", "last"])).pooling is Pooling.LAST
    assert engine_config(parser.parse_args(["--speculation", "off"])).speculation is SpeculationMode.OFF
    assert (config.draft, engine_config(parser.parse_args(["--draft", "small"])).draft) == (None, "small")
    none = engine_config(parser.parse_args(["--draft", "none"]))
    assert (config.predicts, none.draft, none.predicts) == (True, None, False)
    assert not engine_config(parser.parse_args(["--speculation", "lookup"])).predicts
    with pytest.raises(ConfigError, match="draft: small would propose tokens, and speculation is off"):
        engine_config(parser.parse_args(["--draft", "small", "--speculation", "off"]))


def test_a_draft_without_a_model_is_refused() -> None:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    with pytest.raises(ConfigError, match="--draft small: there is no MODEL to draft for"):
        serve.run(parser.parse_args(["--draft", "small"]))


def test_a_trace_without_a_name_is_refused_by_its_option() -> None:
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    with pytest.raises(ConfigError, match="load_trace: expected a path, got ''"):
        engine_config(parser.parse_args(["--load-trace", ""]))


@pytest.mark.parametrize(("text", "limit_s"), [("0.25", 0.25), ("0", None), ("auto", "auto")])
def test_the_limit_of_steps_with_prompts_reaches_the_engine(text: str, limit_s: float | str | None) -> None:
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    assert engine_config(parser.parse_args(["--max-mixed-step", text])).max_mixed_step_s == limit_s
    assert engine_config(parser.parse_args([])).max_mixed_step_s == "auto"


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "fast", "1e9"])
def test_a_limit_that_is_no_time_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--max-mixed-step={text}"])
    assert "expected seconds" in capsys.readouterr().err


@pytest.mark.skipif(
    not SOFTWARE_DRIVERS, reason="Mesa's software Vulkan driver is not installed (Debian: mesa-vulkan-drivers)"
)
def test_inspect_says_how_the_files_would_be_read_and_why() -> None:
    assert "how it reads: " in unicorn("inspect", "demo", environ=software_only()).stdout
    devices = json.loads(unicorn("inspect", "demo", "--json", environ=software_only()).stdout)["devices"]
    assert all("threads: " in device["reading"] for device in devices)


def test_inspect_says_what_the_cache_would_do(tmp_path: Path) -> None:
    environment = {**software_only(), "XDG_CACHE_HOME": str(tmp_path)}

    def state(*options: str) -> str:
        return str(
            json.loads(unicorn("inspect", "demo", "--json", *options, environ=environment).stdout)["cache"]["state"]
        )

    assert state() == "off"
    assert state("--weights", "int8") == "miss"
    assert state("--weights", "int8", "--no-cache") == "off"
    assert (
        "cache          miss: not there yet"
        in unicorn("inspect", "demo", "--weights", "int8", environ=environment).stdout
    )


def test_inspect_says_what_a_load_would_write_to_the_cache_and_what_the_limit_would_forbid(tmp_path: Path) -> None:
    environment = {**software_only(), "XDG_CACHE_HOME": str(tmp_path)}

    def lines(*options: str) -> str:
        return unicorn("inspect", "demo", "--weights", "int8", *options, environ=environment).stdout

    assert "; a load would write 7" in lines("--cache-bytes", "64M")
    assert "; a load would not keep it: " in lines("--cache-bytes", "1M")
    assert "bytes needed, the cache may have 1048576" in lines("--cache-bytes", "1M")
    cache = json.loads(lines("--cache-bytes", "1M", "--json"))["cache"]
    assert (cache["would_write"], cache["would_remove"]) == (0, [])
