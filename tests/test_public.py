"""What users import: all of it from the package itself, at no cost before it is used, with types and with texts."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import unicorn_async
from unicorn_async import config, converted, errors
from unicorn_async.config import (
    AttentionKind,
    AttentionTarget,
    EngineConfig,
    ExchangeKind,
    KVDType,
    SplitMode,
    WeightScheme,
)
from unicorn_async.lora_spec import LoraSpec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import make_api

PROJECT = make_api.ROOT
NAMED = {
    "kv_dtype": KVDType,
    "weights": WeightScheme,
    "attention_split": SplitMode,
    "attention_exchange": ExchangeKind,
}
ELSEWHERE = {"attention_split", "attention_exchange"}  # which are for attention on another device
SNIPPET = """
import asyncio
from dataclasses import replace
from pathlib import Path
from typing import assert_type

import unicorn_async
from unicorn_async import ChatMessage, Engine, EngineConfig, KVDType, LoadProgress, LoraSpec, SamplingParams, Token
from unicorn_async import ConfigError, UnicornError, WeightScheme

config = EngineConfig(
    kv_dtype="int8", weights="int4", attention="vulkan:1", attention_split="never", attention_exchange="copied",
    loras=("poet", "poet=0.5", Path("poet"), LoraSpec("poet", 2)), load_trace="load.json", step_trace=Path("s.json"),
)
assert_type(config.kv_dtype, KVDType)
assert_type(config.loras, tuple[LoraSpec, ...])
assert_type(config.loras[0].path, Path)
assert_type(config.load_trace, Path | None)
assert_type(replace(config, weights="nf4").weights, WeightScheme)
assert_type(EngineConfig(weights=WeightScheme.NF4).block_size, int)

EngineConfig(kv_dtype="int7")  # type: ignore[arg-type]
EngineConfig(load_trace=5)  # type: ignore[arg-type]
config.weights = WeightScheme.F16  # type: ignore[misc]
unicorn_async.Nothing  # type: ignore[attr-defined]


async def main() -> None:
    try:
        async with Engine.open("demo", config=config) as engine:
            async for progress in engine.load_progress():
                assert_type(progress, LoadProgress)
            prompt = engine.tokenizer.encode_chat([ChatMessage("user", "Why?")])
            async for token in engine.stream(prompt, SamplingParams(max_tokens=5)):
                assert_type(token, Token)
    except ConfigError as error:
        assert_type(error, ConfigError)
    except UnicornError:
        raise


asyncio.run(main())
"""


def test_the_package_has_every_public_name_and_no_other() -> None:
    assert unicorn_async.__all__ == sorted(make_api.public_names()) == dir(unicorn_async)
    for name, module in make_api.public_names().items():
        assert getattr(unicorn_async, name) is getattr(sys.modules[module], name)
    with pytest.raises(AttributeError, match="module 'unicorn_async' has no attribute 'Nothing'"):
        unicorn_async.Nothing  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'numpy'"):
        exec("from unicorn_async import numpy")


def test_every_error_is_public() -> None:
    raised = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert raised <= set(unicorn_async.__all__)


def test_importing_the_package_imports_nothing_else() -> None:
    program = "import sys; before = set(sys.modules); import unicorn_async; print(*set(sys.modules) - before)"
    assert run("-c", program).stdout.split() == ["unicorn_async"]


def test_a_configuration_needs_neither_numpy_nor_vulkan() -> None:
    program = """import sys
from unicorn_async import ChatMessage, EngineConfig, LoraSpec, SamplingParams, UnicornError
EngineConfig(loras=("poet",)), SamplingParams(), UnicornError()
print("numpy" in sys.modules, "vulkan" in sys.modules)"""
    assert run("-c", program).stdout == "False False\n"


def test_the_package_is_the_command() -> None:
    done = run("-m", "unicorn_async", "--version")
    assert done.stdout.startswith("unicorn-async ")
    refused = run("-m", "unicorn_async", "nothing")
    assert refused.returncode == 2 and refused.stderr.startswith("usage: unicorn ")


def test_users_programs_pass_the_type_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy, which checks the program, is not installed")
    (readme,) = re.findall(r"### From Python\n\n```python\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    programs = {tmp_path / "program.py": SNIPPET, tmp_path / "readme.py": readme}
    for path, text in programs.items():
        path.write_text(text)
    # With the project's settings, so that what a check of the project has left in the cache serves here too.
    done = run("-m", "mypy", "--strict", "--config-file", str(PROJECT / "pyproject.toml"), *map(str, programs))
    assert done.stdout == "Success: no issues found in 2 source files\n", done.stdout + done.stderr


def test_the_reference_is_what_the_docstrings_say() -> None:
    assert make_api.PAGE.read_text(encoding="utf-8") == make_api.page(), "run python tools/make_api.py"


@pytest.mark.parametrize(("name", "kind"), NAMED.items())
def test_an_option_with_names_takes_each_of_them(name: str, kind: Any) -> None:
    there: dict[str, Any] = {"attention": "vulkan:1"} if name in ELSEWHERE else {}
    for member in kind:
        assert getattr(EngineConfig(**{name: member.value}, **there), name) is member
        assert EngineConfig(**{name: member.value}, **there) == EngineConfig(**{name: member}, **there)
        assert getattr(replace(EngineConfig(**there), **{name: member.value}), name) is member
    hints = get_type_hints(EngineConfig, {**vars(config), **vars(converted)})
    assert {member.value for member in kind} == set(get_args(get_args(hints[name])[1]))


@pytest.mark.parametrize(("name", "kind"), NAMED.items())
@pytest.mark.parametrize("value", ["int7", "", 8, ["f16"], b"f16"])
def test_a_name_that_an_option_does_not_have_is_refused_with_those_that_it_has(
    name: str, kind: Any, value: Any
) -> None:
    *names, last = (member.value for member in kind)
    with pytest.raises(errors.ConfigError) as refused:
        EngineConfig(**{name: value})
    assert str(refused.value) == f"{name}: expected {', '.join(names)} or {last}, got {value!r}"


def test_a_place_for_the_attention_is_given_as_text() -> None:
    assert EngineConfig(attention="vulkan:1").attention == AttentionTarget(AttentionKind.VULKAN, "1")
    for wrong in ("cpu", ""):
        with pytest.raises(errors.ConfigError, match="attention: expected gpu, npu, auto, or vulkan:DEVICE"):
            EngineConfig(attention=wrong)
    nothing: Any = None
    with pytest.raises(errors.ConfigError, match="attention: expected an AttentionTarget or a string, got None"):
        EngineConfig(attention=nothing)


def test_adapters_are_given_as_text_or_paths(tmp_path: Path) -> None:
    odd = tmp_path / "poet=2"
    odd.mkdir()
    given = EngineConfig(loras=("poet", "poet=0.5", Path("poet=0.5"), str(odd), LoraSpec("poet", 2)))
    assert given.loras == (
        LoraSpec(Path("poet")),
        LoraSpec(Path("poet"), 0.5),
        LoraSpec(Path("poet=0.5")),
        LoraSpec(odd),
        LoraSpec(Path("poet"), 2),
    )
    with pytest.raises(errors.ConfigError, match="loras: expected DIR or DIR=WEIGHT with a number, got 'poet=much'"):
        EngineConfig(loras=("poet=much",))
    wrong: Any = "poet"
    with pytest.raises(errors.ConfigError, match="loras: expected a tuple of LoraSpec, paths or texts DIR=WEIGHT"):
        EngineConfig(loras=wrong)


def test_paths_are_given_as_text() -> None:
    given = EngineConfig(attention="npu", load_trace="load.json", step_trace="steps.json")
    assert (given.load_trace, given.step_trace) == (Path("load.json"), Path("steps.json"))
    wrong: Any = 5
    for name in ("load_trace", "step_trace"):
        with pytest.raises(errors.ConfigError, match=f"{name}: expected a path, got 5"):
            EngineConfig(**{name: wrong})
        with pytest.raises(errors.ConfigError, match=f"{name}: expected a path, got ''"):
            EngineConfig(attention="npu", **{name: ""})
    with pytest.raises(errors.ConfigError, match="adapter: expected a path, got 5"):
        LoraSpec(wrong)


def test_options_stay_frozen_and_hashable() -> None:
    options: Any = EngineConfig(kv_dtype="int8", loras=("poet",))
    with pytest.raises(AttributeError):
        options.kv_dtype = "f16"
    assert not hasattr(options, "__dict__")
    assert len({options, replace(options), EngineConfig(kv_dtype="int8", loras=("poet",))}) == 1
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'path'"):
        LoraSpec()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
