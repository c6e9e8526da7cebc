"""A short run of the fuzzer; tools/fuzz.py is the long one. What it once found is kept here as files of its own."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unicorn_async.checkpoint.gguf import plain_parts
from unicorn_async.checkpoint.gguf.plain_parts import plain_part

from .mutations import mutated
from .targets import NAMES, BrokenPromise, Target, check, make_targets


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    made = make_targets(tmp_path_factory.mktemp("fuzz"))
    assert set(made) == set(NAMES)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_sound_files_are_read(name: str, targets: dict[str, Target]) -> None:
    target = targets[name]
    readable = [check(target, seed) for seed in target.seeds]
    assert readable[0]


def test_small_vocabularies_are_read_as_large_ones_are(
    targets: dict[str, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def noted(data: bytes, most: int) -> tuple[bytes, int]:
        part, count = plain_part(data, most)
        found.append(count)
        return part, count

    monkeypatch.setattr(plain_parts, "plain_part", noted)
    target = targets["gguf_vocabulary"]
    for seed in target.seeds:
        found.clear()
        check(target, seed)
        assert len(found) > 4
        assert all(found)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_are_read_or_refused(name: str, targets: dict[str, Target]) -> None:
    target = targets[name]

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from(target.seeds), st.integers(0, 2**32))
    def damage(seed: bytes, number: int) -> None:
        check(target, mutated(seed, Random(number)))

    damage()


@pytest.mark.parametrize("name", NAMES)
def test_noise_and_truncated_files_are_read_or_refused(name: str, targets: dict[str, Target]) -> None:
    target = targets[name]

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.binary(max_size=300), st.floats(0, 1))
    def noise(data: bytes, share: float) -> None:
        check(target, data)
        check(target, target.seeds[0][: int(share * len(target.seeds[0]))])

    noise()


CONFIG_FINDS = [
    {"num_hidden_layers": 1 << 24},  # a plan for every one of them
    {"rope_theta": 10**400},  # no float
    {"rms_norm_eps": 10**400},
    {"hidden_size": 10**400},
]


@pytest.mark.parametrize("change", CONFIG_FINDS, ids=lambda change: next(iter(change)))
def test_a_configuration_that_was_too_much(change: dict[str, object], targets: dict[str, Target]) -> None:
    target = targets["config"]
    for seed in target.seeds:
        assert not check(target, json.dumps(json.loads(seed) | change).encode())


@pytest.mark.parametrize("name", ["a" * 300 + ".safetensors", "\ud800.safetensors", "\0.safetensors"])
def test_a_name_that_no_file_can_have(name: str, targets: dict[str, Target]) -> None:
    target = targets["index"]
    index = json.loads(target.seeds[0])
    index["weight_map"]["model.norm.weight"] = name
    assert not check(target, json.dumps(index).encode())


def test_a_token_with_half_a_character(targets: dict[str, Target]) -> None:
    target = targets["tokenizer_config"]
    assert not check(target, json.dumps(json.loads(target.seeds[0]) | {"bos_token": "\ud800"}).encode())


def test_a_reader_that_breaks_its_promise_is_noticed() -> None:
    def greedy(data: bytes) -> object:
        return bytearray(1 << 25)

    def careless(data: bytes) -> object:
        return {}[data]

    for read, message in ((greedy, "allocated 335"), (careless, "KeyError")):
        with pytest.raises(BrokenPromise, match=message):
            check(Target("bad", [], read), b"x")
