"""What `serve run unicorn_async.ray:build` takes, by command line and by file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import ConfigError
from unicorn_async.ray.arguments import Arguments

if TYPE_CHECKING:
    from pathlib import Path


def test_texts_of_a_command_line_and_values_of_a_file_mean_the_same() -> None:
    texts = Arguments.parse({"model": "demo", "max_replicas": "3", "num_gpus": "0.5", "allow_software": "true"})
    values = Arguments.parse({"model": "demo", "max_replicas": 3, "num_gpus": 0.5, "allow_software": True})
    assert texts == values
    assert (values.max_replicas, values.num_gpus, values.config.allow_software) == (3, 0.5, True)


def test_options_of_the_server_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    keys, file = tmp_path / "keys", tmp_path / "options.toml"
    keys.write_text("ann sesame use\n")
    file.write_text(f'api-key-file = "{keys}"\nmax-message-bytes = 1000\nmax-context = 300\nmax-stored = 7\n')
    given = {"model": "demo", "config": str(file), "max_message_bytes": "2K", "no-prefix-cache": "true"}
    found = Arguments.parse(given, {"UNICORN_MAX_STORED": "8", "UNICORN_API_KEY": "other"})
    assert found.options.max_message_bytes == 2048
    assert found.options.max_stored == 8
    assert [key.name for key in found.options.keys] == ["api_key", "ann"]
    assert found.options.behind_proxy
    assert (found.config.max_context, found.config.prefix_cache) == (300, False)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "give the model"),
        ({"model": "demo", "replicas": "2"}, "replicas"),
        ({"model": "demo", "max_ongoing": "many"}, "'many'"),
        ({"model": "demo", "max_ongoing": 0}, "1 or more, got 0"),
        ({"model": "demo", "num_gpus": "nan"}, "got nan"),
        ({"model": "demo", "allow_software": "yes"}, "'yes'"),
        ({"model": "demo", "api_key": "sesame"}, "api_key_file"),
        ({"model": "demo", "store": "file"}, "store: there is no such option"),
        ({"model": "demo", "idle_timeout": "9"}, "idle_timeout: there is no such option"),
        ({"model": "demo", "max_message_bytes": "-1"}, "max_message_bytes: expected a positive size, got '-1'"),
        ({"model": "demo", "config": "/nowhere/file.toml"}, "No such file"),
        ({"model": "demo", "min_replicas": 3, "max_replicas": 2}, "min_replicas 3 is more than max_replicas 2"),
    ],
)
def test_what_can_not_be_is_refused_by_name(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Arguments.parse(given)
