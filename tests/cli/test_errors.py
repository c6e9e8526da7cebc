"""What can be wrong with a command line or a machine: one clear message each, and no traceback."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.command import NO_DRIVER, SOFTWARE_DRIVERS, Result, software_only, unicorn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

needs_software_driver = pytest.mark.skipif(
    not SOFTWARE_DRIVERS, reason="Mesa's software Vulkan driver is not installed (Debian: mesa-vulkan-drivers)"
)
ON_SOFTWARE = ("--device", "llvmpipe")


def check_refused(result: Result, *words: str) -> None:
    assert result.status == 1
    assert "Traceback" not in result.stderr
    message = result.stderr[result.stderr.index("unicorn ") :] if "unicorn " in result.stderr else result.stderr
    assert all(word in message for word in words), result.stderr


@pytest.mark.parametrize("command", [("devices",), ("demo", "--port", "0"), ("generate", "demo", "hi")])
def test_a_machine_without_a_vulkan_driver_is_told_what_to_install(command: tuple[str, ...]) -> None:
    check_refused(unicorn(*command, environ=NO_DRIVER), "no usable Vulkan driver", "mesa-vulkan-drivers")


def test_names_in_errors_do_not_move_the_terminal_s_cursor() -> None:
    result = unicorn("inspect", "no\x1b[2Jthing", environ=NO_DRIVER)
    check_refused(result, "no?[2Jthing")
    assert "\x1b" not in result.stderr


def test_names_in_the_log_do_not_move_the_terminal_s_cursor() -> None:
    program = """
import logging
from unicorn_async.cli import devices, main
devices.run = lambda options: logging.getLogger("unicorn_async").warning("%s:\\ndamaged", "no\\x1b[2Jthing") or 0
main.main(["devices"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stderr == "unicorn: no?[2Jthing:\ndamaged\n"


def test_a_machine_without_the_vulkan_loader_is_told_what_to_install(tmp_path: Path) -> None:
    # Stands in for the binding, which raises this where libvulkan.so.1 is absent.
    package = tmp_path / "vulkan"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_vulkan.py").write_text("raise OSError('Cannot find Vulkan SDK version')\n")
    check_refused(unicorn("devices", environ={"PYTHONPATH": str(tmp_path)}), "libvulkan.so.1: not found", "libvulkan1")


@needs_software_driver
def test_a_software_device_is_not_taken_unasked() -> None:
    result = unicorn("generate", "demo", "hi", environ=software_only())
    check_refused(result, "no GPU found, only a software device", "ask for it by name", "llvmpipe")


@needs_software_driver
def test_an_unknown_device_is_answered_with_those_that_exist() -> None:
    result = unicorn("generate", "demo", "hi", "--device", "voodoo", environ=software_only())
    check_refused(result, "device 'voodoo'", "there are:", "llvmpipe")


@pytest.mark.parametrize("command", ["serve", "inspect", "bench"])
def test_a_model_that_is_not_on_this_machine_is_not_looked_for_elsewhere(command: str, tmp_path: Path) -> None:
    result = unicorn(command, "nobody/nothing", environ={"HF_HOME": str(tmp_path)})
    check_refused(result, "nobody/nothing: not on this machine", "Nothing is downloaded")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_in_use_is_named_before_anything_is_opened(taken_port: int) -> None:
    result = unicorn("demo", "--port", str(taken_port), environ=NO_DRIVER)
    check_refused(result, f"can't listen on 127.0.0.1 port {taken_port}", "in use")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seed", "-1"), "seed: expected"),
        (("--presence-penalty", "3"), "presence_penalty: expected"),
        (("--json", "--logprobs", "21"), "top_logprobs: expected"),
        (("--logprobs", "2"), "--logprobs: only --json shows them"),
    ],
)
def test_a_wrong_sampling_option_is_named(arguments: tuple[str, ...], words: str) -> None:
    result = unicorn("generate", "demo", "hi", *arguments, environ=NO_DRIVER)
    check_refused(result, words)
    assert result.stderr.count("\n") == 1


@needs_software_driver
def test_a_context_longer_than_the_models_is_refused_in_one_line() -> None:
    result = unicorn("generate", "demo", "hi", "--max-context", "99999", *ON_SOFTWARE, environ=software_only())
    check_refused(result, "max_context", "99999")
    assert result.stderr.count("\n") == 1


@needs_software_driver
def test_a_failed_start_is_told_once_whatever_is_logged() -> None:
    command = ("serve", "demo", "--port", "0", "--max-context", "4096", "--log-level", "info", *ON_SOFTWARE)
    result = unicorn(*command, environ=software_only())
    check_refused(result, "unicorn serve: max_context: the model has 2048 positions, 4096 are asked for")
    assert result.stderr.count("4096 are asked for") == 1
    assert "listening on" in result.stderr


@needs_software_driver
def test_a_cache_folder_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    # The driver has nothing compiled: an answer that came before the end of the load would end it, and write nothing.
    environ = {**software_only(), "XDG_CACHE_HOME": str(blocked), "MESA_SHADER_CACHE_DISABLE": "true"}
    result = unicorn("generate", "demo", "hi", "--max-tokens", "2", "--device", "llvmpipe", environ=environ)
    assert result.status == 0
    assert "not written" in result.stderr
    assert str(blocked) in result.stderr


@pytest.mark.parametrize("key", ["", " "])
def test_an_empty_api_key_is_refused(key: str) -> None:
    check_refused(unicorn("serve", "demo", environ={"UNICORN_API_KEY": key}), "UNICORN_API_KEY", "empty")
    check_refused(unicorn("serve", "demo", "--api-key", key), "--api-key", "empty")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "COMMAND"),
        (("dance",), "invalid choice: 'dance'"),
        (("inspect",), "MODEL"),
        (("bench", "demo", "--batch", "1,none"), "positive whole number, got 'none'"),
        (("serve", "demo", "--kv-cache-bytes", "much"), "expected a size"),
        (("serve", "demo", "--port", "65536"), "expected a port, 0 to 65535, got '65536'"),
        (("demo", "--port", "-1"), "expected a port, 0 to 65535, got '-1'"),
    ],
)
def test_a_wrong_command_line_is_answered_with_the_usage(arguments: tuple[str, ...], words: str) -> None:
    result = unicorn(*arguments)
    assert result.status == 2
    assert words in result.stderr
    assert "usage: unicorn" in result.stderr
