"""adapter_config.json: ranks and scales as PEFT gives them, all that is not plain LoRA refused."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unicorn_async.errors import CheckpointError, UnicornError, UnsupportedModelError
from unicorn_async.lora.config import LoraConfig
from unicorn_async.lora.module_pattern import ModulePattern

from .adapters import CONFIG

MODULE = "model.layers.1.self_attn.q_proj"


def parsed(**fields: Any) -> LoraConfig:
    return LoraConfig.parse(CONFIG | fields, "adapter_config.json")


def test_the_scale_is_alpha_over_rank() -> None:
    assert parsed(r=16, lora_alpha=8).scale_of(MODULE) == 0.5
    assert parsed(r=16, lora_alpha=8.5).rank_of(MODULE) == 16


def test_rslora_divides_by_the_root_of_the_rank() -> None:
    assert parsed(r=64, lora_alpha=16, use_rslora=True).scale_of(MODULE) == 2.0
    pattern = {"q_proj": 8}
    assert parsed(r=64, lora_alpha=16, use_rslora=True, rank_pattern=pattern).scale_of(MODULE) == 16 / math.sqrt(8)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("q_proj", True),
        ("self_attn.q_proj", True),
        (MODULE, True),
        ("^" + MODULE + "$", True),
        (r"layers\.1\.self_attn\.q_proj", True),
        (r"layers.[0-3].self_attn.q_proj", True),
        (r"layers\.\d+\.self_attn\.(q|v)_proj", True),
        (r"model.*q_proj", True),
        ("^self_attn.q_proj", False),
        ("proj", False),
        ("attn.q_proj", False),
        ("k_proj", False),
        ("layers.1", False),
        (r"layers\.[02]\.self_attn\.q_proj", False),
    ],
)
def test_a_pattern_matches_the_end_of_a_name_from_a_dot_on(pattern: str, matches: bool) -> None:
    config = parsed(rank_pattern={pattern: 2}, alpha_pattern={pattern: 1})
    assert config.rank_of(MODULE) == (2 if matches else 4)
    assert config.scale_of(MODULE) == (0.5 if matches else 2.0)


def test_the_first_pattern_that_matches_counts() -> None:
    config = parsed(rank_pattern={"layers.1.self_attn.q_proj": 2, "q_proj": 3}, alpha_pattern={"k_proj": 1})
    assert (config.rank_of(MODULE), config.rank_of("model.layers.0.self_attn.q_proj")) == (2, 3)
    assert config.scale_of(MODULE) == 4.0


@pytest.mark.parametrize(
    "pattern",
    ["", "(a+)+", "((a|b)|c)", "a{3}", "(?=a)", r"\w+", "a**", "x" * 257, "[", "(", "a|b", ".*.*.*", "[z-a]", "a\nb"],
)
def test_a_pattern_that_could_take_long_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedModelError, match="rank_pattern"):
        parsed(rank_pattern={pattern: 2})


@given(st.text(alphabet="ab.*+\\d[]()|^$-_", max_size=40), st.text(alphabet="ab.", max_size=120))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_pattern_takes_long(pattern: str, module: str) -> None:
    try:
        made = ModulePattern(pattern, "here")
    except UnsupportedModelError:
        return
    started = time.thread_time()
    made.matches(module + "!")
    assert time.thread_time() - started < 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "LOKR"}, "peft_type is 'LOKR'; only 'LORA'"),
        ({"peft_type": None}, "peft_type is None"),
        ({"use_dora": True}, "use_dora is True: DoRA: not supported"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"layer_replication": [[0, 4], [2, 5]]}, "layer_replication"),
        ({"lora_bias": True}, "lora_bias"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"target_parameters": ["experts"]}, "target_parameters"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which changes the base's weights too"),
        ({"init_lora_weights": "loftq"}, "init_lora_weights"),
    ],
)
def test_what_is_not_plain_lora_is_refused_by_name(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        parsed(**fields)


@pytest.mark.parametrize("start", [True, False, None, "gaussian", "eva", "orthogonal"])
def test_a_start_that_leaves_the_base_alone_is_fine(start: object) -> None:
    assert parsed(init_lora_weights=start).rank == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"r": 0}, "r: expected a whole number, 1 to 65536, got 0"),
        ({"r": True}, "got True"),
        ({"r": "8"}, "got '8'"),
        ({"r": 1 << 70}, "r: expected"),
        ({"r": None}, "got None"),
        ({"lora_alpha": None}, "lora_alpha: expected a number, got None"),
        ({"lora_alpha": float("nan")}, "lora_alpha: expected a number, got nan"),
        ({"lora_alpha": float("inf")}, "got inf"),
        ({"bias": "some"}, "bias: expected 'none', 'all' or 'lora_only', got 'some'"),
        ({"use_rslora": "yes"}, "use_rslora: expected true or false, got 'yes'"),
        ({"fan_in_fan_out": 1}, "fan_in_fan_out: expected true or false, got 1"),
        ({"rank_pattern": {"q_proj": -1}}, "rank_pattern: q_proj: expected a whole number, 1 to 65536, got -1"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern: q_proj: expected a number, got 'x'"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern: expected an object"),
    ],
)
def test_values_that_can_not_be_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parsed(**fields)


def test_fan_in_fan_out_is_for_layers_that_decoders_here_do_not_have() -> None:
    assert parsed(fan_in_fan_out=True) == parsed()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*CONFIG, "lora_bias", "layer_replication", "x"]), json_values, max_size=8))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_configuration_is_taken_or_refused(fields: dict[str, object]) -> None:
    try:
        config = parsed(**fields)
    except UnicornError:
        return
    assert config.rank_of(MODULE) >= 1
    assert math.isfinite(config.scale_of(MODULE))
