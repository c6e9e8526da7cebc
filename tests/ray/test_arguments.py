"""What `serve run unicorn_async.ray:build` takes, by command line and by file."""

from __future__ import annotations

import pytest

from unicorn_async.errors import ConfigError
from unicorn_async.ray.arguments import Arguments


def test_texts_of_a_command_line_and_values_of_a_file_mean_the_same() -> None:
    texts = Arguments.parse({"model": "demo", "max_replicas": "3", "num_gpus": "0.5", "allow_software": "true"})
    values = Arguments.parse({"model": "demo", "max_replicas": 3, "num_gpus": 0.5, "allow_software": True})
    assert texts == values == Arguments("demo", max_replicas=3, num_gpus=0.5, allow_software=True)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "give the model"),
        ({"model": "demo", "replicas": "2"}, "replicas"),
        ({"model": "demo", "max_ongoing": "many"}, "'many'"),
        ({"model": "demo", "max_ongoing": 0}, "1 or more, got 0"),
        ({"model": "demo", "num_gpus": "nan"}, "got nan"),
        ({"model": "demo", "allow_software": "yes"}, "'yes'"),
        ({"model": "demo", "min_replicas": 3, "max_replicas": 2}, "min_replicas 3 is more than max_replicas 2"),
    ],
)
def test_what_can_not_be_is_refused_by_name(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Arguments.parse(given)
