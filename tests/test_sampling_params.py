"""Parameters of sampling that can't work are refused where they are given, with the value."""

from __future__ import annotations

import pytest

from unicorn_async.errors import ConfigError
from unicorn_async.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", 2.5),
        ("top_p", 0.0),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", float("inf")),
        ("seed", -5),
        ("seed", 1 << 64),
        ("stop", ("",)),
        ("stop", "abc"),
        ("stop", 5),
        ("stop_token_ids", "ab"),
        ("stop_token_ids", None),
        ("stop_token_ids", (-1,)),
        ("ignore_eos", 1),
        ("min_tokens", -1),
        ("min_tokens", True),
        ("logit_bias", {"5": 1}),
        ("logit_bias", {5: 100.5}),
        ("logit_bias", {5: float("nan")}),
        ("logit_bias", {-1: 1}),
        ("logit_bias", ((5, 1), (5, 2))),
        ("logit_bias", ((5, 1, 2),)),
        ("logit_bias", dict.fromkeys(range(1025), 1)),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_logprobs", 21),
    ],
)
def test_a_sampling_parameter_that_cannot_work_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]
