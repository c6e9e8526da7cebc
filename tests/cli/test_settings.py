"""Options from flags, the environment and a file."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import pytest

from tests.cli.command import unicorn
from unicorn_async.cli import serve
from unicorn_async.cli.options import engine_config
from unicorn_async.cli.serving import server_options
from unicorn_async.cli.settings import parse_settings
from unicorn_async.errors import ConfigError
from unicorn_async.lora_spec import LoraSpec


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.set_defaults(vulkan=None)
    serve.add_arguments(made)
    return made


def parse(*given: str, environ: dict[str, str] | None = None) -> argparse.Namespace:
    return parse_settings(parser(), given, environ or {})


def file_with(folder: Path, text: str) -> str:
    path = folder / "unicorn.toml"
    path.write_text(text)
    return str(path)


def test_without_file_and_variables_all_is_as_on_the_command_line_alone() -> None:
    given = ["demo", "--port", "5", "--weights", "int8"]
    expected = vars(parser().parse_args(given))
    assert vars(parse(*given)) == {**expected, "print_config": None}
    assert vars(parse()) == {**vars(parser().parse_args([])), "print_config": None}


def test_flags_go_before_variables_and_these_before_the_file(tmp_path: Path) -> None:
    config = file_with(
        tmp_path,
        'model = "demo"\nport = 1\nhost = "a"\nweights = "int8"\nkeep-model = true\nmodels_dir = ["x", "y"]\n'
        'lora = "z=0.5"\nvram = "6G"\nmax-mixed-step = 0.25\n',
    )
    environ = {"UNICORN_CONFIG": config, "UNICORN_HOST": "b", "UNICORN_PORT": "2", "UNICORN_ALLOW_HOST": "m,n"}
    options = parse("--port", "3", "--models-dir", "w", environ=environ)
    assert (options.model, options.port, options.host, options.keep_model) == ("demo", 3, "b", True)
    assert options.models_dir == [Path("w")]  # a flag's list takes the place of the file's
    assert options.allow_host == ["m", "n"]
    engine = engine_config(options)
    assert (engine.weights.value, engine.vram_bytes, engine.max_mixed_step_s) == ("int8", 6 << 30, 0.25)
    assert engine.loras == (LoraSpec("z", 0.5),)
    assert parse("--config", config, environ={"UNICORN_KEEP_MODEL": "no"}).keep_model is False


def test_the_printed_file_gives_the_same_options(tmp_path: Path) -> None:
    given = [
        "demo",
        "--api-key",
        "secret",
        "--lora",
        "a=2",
        "--models-dir",
        'q"\\',
        "--attention",
        "vulkan:0",
        "--gtt=1G",
    ]
    text = parse(*given, "--print-config", environ={"UNICORN_PORT": "7"}).print_config
    assert "secret" not in text
    assert "port = 7  # UNICORN_PORT" in text
    assert "# device is not set: the fastest GPU that has room" in text
    assert "# max-connections = 1024  # default" in text
    assert '# speculation = "auto"  # default: where that can be' in text
    assert tomllib.loads(text)["attention"] == "vulkan:0"
    again = parse("--config", file_with(tmp_path, text), "--api-key", "secret")
    given_again = vars(parse(*given, environ={"UNICORN_PORT": "7"}))
    assert {**vars(again), "config": None} == given_again
    assert server_options(again).api_key == "secret"


def test_options_that_are_not_set_are_printed_with_what_goes_for_them() -> None:
    lines = parse("--print-config").print_config.splitlines()
    none = {
        "api-key",
        "api-key-file",
        "tls-cert",
        "tls-key",
        "store",
        "otlp-endpoint",
        "load-trace",
        "step-trace",
    }
    assert {line for line in lines if line.endswith("is not set")} - {"# model is not set"} == {
        f"# {name} is not set" for name in none
    }


WRONG = [
    ("prot = 1", r"unicorn.toml: prot: there is no such option"),
    ("port = 70000", r"unicorn.toml: port: expected a port, 0 to 65535, got '70000'"),
    ('drain = "auto"', r"unicorn.toml: drain: expected seconds, 0 to 3600, got 'auto'"),
    ('weights = "int3"', r"unicorn.toml: weights: expected one of auto, .*, got 'int3'"),
    ("keep-model = 1", r"unicorn.toml: keep-model: expected true or false, got 1"),
    ("port = true", r"unicorn.toml: port: expected a string or a number, got True"),
    ("models-dir = [[1]]", r"unicorn.toml: models-dir: expected a string or a number, got \[1\]"),
    ("port = ", "not valid TOML"),
    ("config = 'x'", "config: there is no such option"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse("--config", file_with(tmp_path, text))


def test_what_is_wrong_elsewhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.toml: No such file"):
        parse("--config", str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="UNICORN_PORT: expected a port"):
        parse(environ={"UNICORN_PORT": "x"})
    with pytest.raises(ConfigError, match="UNICORN_KEEP_MODEL: expected true or false, got 'maybe'"):
        parse(environ={"UNICORN_KEEP_MODEL": "maybe"})
    assert parse(environ={"UNICORN_PORT": ""}).port == 8000


@pytest.mark.parametrize(
    ("name", "meant"),
    [("UNICORN_PROT", "PORT"), ("UNICORN_MAX_CONTXT", "MAX_CONTEXT"), ("UNICORN_CONFG", "CONFIG")],
)
def test_a_variable_that_is_nearly_an_option_ends_the_command(
    name: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(environ={name: "8001"})
    assert ended.value.code == 2
    assert f"{name}: there is no such option; did you mean UNICORN_{meant}?" in capsys.readouterr().err


def test_variables_that_a_cluster_sets_for_a_service_are_left_alone() -> None:
    names = ("SERVICE_HOST", "SERVICE_PORT", "PORT_8000_TCP", "PORT_8000_TCP_ADDR", "NPU_BUILD")
    assert parse(environ={f"UNICORN_{name}": "tcp://10.0.0.1:8000" for name in names}).port == 8000


def test_the_command_prints_its_options_and_ends() -> None:
    done = unicorn("serve", "--print-config", environ={"UNICORN_LOG_LEVEL": "info"})
    assert (done.status, done.stderr) == (0, "")
    assert tomllib.loads(done.stdout)["log-level"] == "info"
    assert unicorn("serve", environ={"UNICORN_CONFIG": "/none.toml"}).status == 1
