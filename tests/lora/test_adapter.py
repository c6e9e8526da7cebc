"""Adapters on disk: which weights they change and how, and everything that is wrong with them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint import builders
from unicorn_async.errors import CheckpointError, ConfigError, UnicornError, UnsupportedModelError
from unicorn_async.lora.adapter import LoraAdapter, lora_digest, read_adapters
from unicorn_async.lora.plan import LoraPlan, make_lora_plan
from unicorn_async.lora_spec import LoraSpec
from unicorn_async.weights.wanted import WantedTensor

from .adapters import PREFIX, factors, write_adapter

if TYPE_CHECKING:
    from .adapters import Bytes

SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
Q, DOWN, HEAD = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj", "lm_head"
EMBED = "model.embed_tokens"
WANTED = (
    WantedTensor(f"{EMBED}.weight", (64, 16), -1, "embed", is_table=True),
    WantedTensor(f"{Q}.weight", (24, 16), 0, "layers.0.qkv"),
    WantedTensor(f"{DOWN}.weight", (16, 32), 0, "layers.0.down"),
    WantedTensor("model.norm.weight", (16,), 1, "norm", as_f32=True),
    WantedTensor("lm_head.weight", (64, 16), 1, "head", is_table=True),
)
TIED = WANTED[:-1]
TIED_NAMES = (f"{EMBED}.weight", f"{HEAD}.weight")


def embedding_factors(vocabulary: int = 64, hidden: int = 16, rank: int = 4) -> dict[str, Bytes]:
    return {
        f"{PREFIX}{EMBED}.lora_embedding_A": builders.tensor("F32", rank, vocabulary),
        f"{PREFIX}{EMBED}.lora_embedding_B": builders.tensor("F32", hidden, rank),
    }


def read(directory: Path, tensors: dict[str, Bytes], weight: float = 1.0, **config: Any) -> LoraAdapter:
    return LoraAdapter.read(LoraSpec(write_adapter(directory, tensors, **config), weight))


def planned(directory: Path, tensors: dict[str, Bytes], **config: Any) -> LoraPlan:
    return make_lora_plan([read(directory, tensors, **config)], WANTED)


def test_a_linear_layer_s_factors_are_found_with_their_scale(tmp_path: Path) -> None:
    plan = planned(tmp_path, factors(Q, 24, 16), r=4, lora_alpha=6)
    (change,) = plan.changes[f"{Q}.weight"]
    assert (change.columns, change.rank, change.scale) == (16, 4, 1.5)
    assert (change.left_row, change.left_rank, change.right_rank, change.right_column) == (4, 1, 16, 1)
    sizes = {dest.name: dest.shape for dest in plan.factors.destinations}
    assert (sizes[change.left], sizes[change.right]) == ((24, 4), (4, 16))
    assert plan.factors.bytes_to_read == 4 * (24 * 4 + 4 * 16)


def test_factors_of_embeddings_lie_transposed(tmp_path: Path) -> None:
    (change,) = planned(tmp_path, embedding_factors()).changes[f"{EMBED}.weight"]
    assert (change.columns, change.rank) == (16, 4)
    assert (change.left_row, change.left_rank, change.right_rank, change.right_column) == (1, 64, 1, 4)


@pytest.mark.parametrize("infix", ["", ".default", ".my_adapter"])
@pytest.mark.parametrize(
    "module",
    [
        Q,
        Q.replace("model.", "model.language_model.", 1),
        "language_model." + Q,
    ],
)
def test_names_are_those_of_every_layout(tmp_path: Path, module: str, infix: str) -> None:
    assert set(planned(tmp_path, factors(module, 24, 16, infix=infix)).changes) == {f"{Q}.weight"}


def test_names_may_lack_peft_s_prefix(tmp_path: Path) -> None:
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in factors(Q, 24, 16).items()}
    assert set(planned(tmp_path, tensors).changes) == {f"{Q}.weight"}


def test_ranks_may_differ_between_modules(tmp_path: Path) -> None:
    tensors = factors(Q, 24, 16, rank=2) | factors(DOWN, 16, 32)
    plan = planned(tmp_path, tensors, rank_pattern={"q_proj": 2}, alpha_pattern={"down_proj": 16})
    assert [plan.changes[f"{name}.weight"][0].rank for name in (Q, DOWN)] == [2, 4]
    assert [plan.changes[f"{name}.weight"][0].scale for name in (Q, DOWN)] == [4.0, 4.0]


def test_several_adapters_come_in_their_order_with_their_weights(tmp_path: Path) -> None:
    specs = [
        LoraSpec(write_adapter(tmp_path / "a", factors(Q, 24, 16)), 0.5),
        LoraSpec(write_adapter(tmp_path / "b", factors(Q, 24, 16) | factors(DOWN, 16, 32)), -2),
    ]
    plan = make_lora_plan(read_adapters(specs), WANTED)
    assert [change.scale for change in plan.changes[f"{Q}.weight"]] == [1.0, -4.0]
    assert [change.scale for change in plan.changes[f"{DOWN}.weight"]] == [-4.0]
    assert [adapter.name for adapter in plan.adapters] == ["a", "b"]
    assert {chunk.file for chunk in plan.factors.chunks} == {0, 1}


def test_tensors_of_the_vision_tower_are_skipped(tmp_path: Path) -> None:
    vision = factors("vision_tower.vision_model.encoder.layers.0.self_attn.q_proj", 8, 8)
    adapter = read(tmp_path, vision | factors(Q, 24, 16))
    assert set(adapter.skipped) == set(vision)
    with pytest.raises(UnsupportedModelError, match="no tensors for the language model, 2 for others"):
        read(tmp_path, vision)


def without(tensors: dict[str, Bytes], part: str) -> dict[str, Bytes]:
    return {name: tensor for name, tensor in tensors.items() if part not in name}


BROKEN: list[tuple[dict[str, Bytes], type[Exception], str]] = [
    (without(factors(Q, 24, 16), "lora_B"), CheckpointError, "there is a lora_A without its lora_B"),
    (without(factors(Q, 24, 16), "lora_A"), CheckpointError, "there is a lora_B without its lora_A"),
    (factors(Q, 24, 16, rank=8), CheckpointError, r"of shape \[8, 16\] has rank 8, adapter_config.json says 4"),
    (
        factors(Q, 24, 16) | factors(Q, 24, 16, infix=".default"),
        CheckpointError,
        "are the same tensor",
    ),
    (
        factors(Q, 24, 16) | factors("language_model." + Q, 24, 16),
        CheckpointError,
        "change the same weight",
    ),
    (factors(Q, 16, 24), CheckpointError, r"change a weight of shape \[16, 24\]; '.*q_proj.weight' has \[24, 16\]"),
    (factors("model.layers.7.self_attn.q_proj", 24, 16), UnsupportedModelError, "has no matrix 'model.layers.7"),
    (factors("model.layers.0.mlp.fc1", 24, 16), UnsupportedModelError, "has no matrix"),
    (factors("model.norm", 16, 16), UnsupportedModelError, "has no matrix 'model.norm.weight'"),
    (factors(Q, 24, 16, dtype="I64"), UnsupportedModelError, "dtype I64 is not supported, only F32, F16, BF16"),
    (
        factors(Q, 24, 16) | {f"{PREFIX}{Q}.lora_magnitude_vector": builders.tensor("F32", 24)},
        UnsupportedModelError,
        "belongs to DoRA, which is not supported",
    ),
    (
        factors(Q, 24, 16) | {f"{PREFIX}{Q}.lora_B.bias": builders.tensor("F32", 24)},
        UnsupportedModelError,
        "biases beside LoRA are not supported",
    ),
    (
        factors(Q, 24, 16) | {f"{PREFIX}{Q}.base_layer.bias": builders.tensor("F32", 24)},
        UnsupportedModelError,
        "biases beside LoRA are not supported",
    ),
    (
        factors(Q, 24, 16) | {f"{PREFIX}lm_head.weight": builders.tensor("F32", 64, 16)},
        UnsupportedModelError,
        "a whole weight beside LoRA",
    ),
    (
        {f"{PREFIX}{Q}.lora_C.weight": builders.tensor("F32", 4, 16)},
        UnsupportedModelError,
        "is no factor of a LoRA adapter",
    ),
    (
        {f"{PREFIX}{Q}.lora_A.weight": builders.tensor("F32", 4, 16, 1)},
        CheckpointError,
        r"expected two dimensions .*, got shape \[4, 16, 1\]",
    ),
    (factors(EMBED, 64, 16), CheckpointError, "is a factor for a linear layer, which 'model.embed_tokens' is not"),
    (
        {name.replace(EMBED, HEAD): tensor for name, tensor in embedding_factors().items()},
        CheckpointError,
        "is a factor for embeddings, which 'lm_head' is not",
    ),
    ({}, UnsupportedModelError, "no tensors for the language model"),
]


@pytest.mark.parametrize(("tensors", "error", "message"), BROKEN)
def test_what_is_wrong_with_tensors_is_said(
    tmp_path: Path, tensors: dict[str, Bytes], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        planned(tmp_path, tensors)


@pytest.mark.parametrize("tensors", [factors(HEAD, 64, 16), embedding_factors()], ids=["head", "embeddings"])
def test_a_tied_head_or_its_table_can_not_be_changed(tmp_path: Path, tensors: dict[str, Bytes]) -> None:
    adapter = read(tmp_path, tensors)
    assert make_lora_plan([adapter], WANTED).changes
    with pytest.raises(UnsupportedModelError, match="head is tied to its embeddings, neither can be changed alone"):
        make_lora_plan([adapter], TIED, TIED_NAMES)


def test_a_scale_that_no_float_holds_is_refused(tmp_path: Path) -> None:
    adapter = read(tmp_path, factors(Q, 24, 16), weight=1000, lora_alpha=1e9)
    assert make_lora_plan([adapter], WANTED).changes[f"{Q}.weight"][0].scale == 2.5e11
    with pytest.raises(ConfigError, match="weight: expected a number of at most 1000, got inf"):
        LoraSpec(tmp_path, float("inf"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.gguf", "adapters in GGUF files are not supported; give a directory with adapter_config.json and adapter_m"),
        ("adapter_model.safetensors", "is a file: expected a directory; give a directory with adapter_config.json"),
    ],
)
def test_a_file_is_no_adapter(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=message):
        LoraAdapter.read(LoraSpec(tmp_path / name))


def test_files_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ConfigError, match="nowhere: no such directory, and not in the Hugging Face cache"):
        LoraAdapter.read(LoraSpec(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"has no adapter_config.json"):
        LoraAdapter.read(LoraSpec(tmp_path))
    directory = write_adapter(tmp_path / "adapter", factors(Q, 24, 16))
    (directory / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no adapter_model.safetensors"):
        LoraAdapter.read(LoraSpec(directory))
    (directory / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match=r"tensors in adapter_model.bin; only safetensors files"):
        LoraAdapter.read(LoraSpec(directory))


def test_a_name_means_the_hugging_face_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = tmp_path / "models--someone--poet"
    write_adapter(repo / "snapshots" / "abc", factors(Q, 24, 16))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert LoraAdapter.read(LoraSpec(Path("someone/poet"))).name == "someone/poet"


def test_the_digest_tells_everything_that_matters_apart(tmp_path: Path) -> None:
    def digest(name: str, *, weight: float = 1.0, seed: str = Q, **config: Any) -> str:
        return lora_digest([read(tmp_path / name, factors(seed, 24, 16), weight, **config)])

    same = digest("a")
    assert len(same) == 64
    assert digest("b") == same, "where it lies does not matter"
    others = {digest("c", weight=0.5), digest("d", lora_alpha=9), digest("e", seed=DOWN)}
    assert len(others | {same}) == 4
    one, two = (LoraAdapter.read(LoraSpec(tmp_path / name)) for name in ("a", "d"))
    assert lora_digest([one, two]) != lora_digest([two, one])
    assert lora_digest([]) == ""


def sparse_adapter(directory: Path, gigabytes: int) -> LoraAdapter:
    """An adapter whose two factors have so many GB of zeros each, which no disk has to hold."""
    rows = gigabytes << 14
    shapes = ((1 << 14, rows), (rows, 1 << 14))
    nbytes = 4 * (rows << 14)
    described = {
        f"{PREFIX}{Q}.lora_{side}.weight": {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [index * nbytes, (index + 1) * nbytes],
        }
        for index, (side, shape) in enumerate(zip("AB", shapes, strict=True))
    }
    write_adapter(directory, {}, r=1 << 14)
    with (directory / "adapter_model.safetensors").open("wb") as file:
        file.write(builders.with_header(json.dumps(described).encode()))
        file.truncate(file.tell() + 2 * nbytes)
    return LoraAdapter.read(LoraSpec(directory))


def bytes_read() -> int:
    """What this process has asked the system to read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_of_a_large_adapter_a_part_is_read_and_a_new_one_is_noticed(tmp_path: Path) -> None:
    before = bytes_read()
    first = sparse_adapter(tmp_path, 4)
    assert first.stamp.nbytes > 8 << 30
    assert bytes_read() - before < 32 << 20
    assert LoraAdapter.read(LoraSpec(tmp_path)).digest == first.digest
    os.utime(first.tensors_path, ns=(0, first.stamp.mtime_ns + 1))
    assert LoraAdapter.read(LoraSpec(tmp_path)).digest != first.digest


def test_an_adapter_s_header_is_checked_before_anything_else_of_its_file(tmp_path: Path) -> None:
    directory = write_adapter(tmp_path, factors(Q, 24, 16))
    with (directory / "adapter_model.safetensors").open("ab") as file:
        file.truncate(15 << 30)
    before = bytes_read()
    with pytest.raises(CheckpointError, match="bytes after the last tensor belong to none"):
        LoraAdapter.read(LoraSpec(directory))
    assert bytes_read() - before < 1 << 20


def test_a_byte_of_a_tensor_changes_the_digest(tmp_path: Path) -> None:
    first = read(tmp_path, factors(Q, 24, 16))
    path = tmp_path / "adapter_model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert LoraAdapter.read(LoraSpec(tmp_path)).digest != first.digest


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=SLOW_IS_FINE)
def test_any_damage_is_an_error_with_a_name(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes flipped, cut or put into either file, and names and shapes drawn into the header."""
    directory = write_adapter(tmp_path / "fuzzed", factors(Q, 24, 16) | embedding_factors())
    path = directory / data.draw(st.sampled_from(["adapter_config.json", "adapter_model.safetensors"]))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(content) - 1, 0)))
        match data.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip" if content:
                content[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del content[at:]
            case _:
                content[at:at] = data.draw(st.binary(max_size=8))
    path.write_bytes(content)
    read_or_refused(directory)


sizes = st.lists(st.integers(0, 1 << 62) | st.integers(0, 64), max_size=4)
names = st.sampled_from([*factors(Q, 1, 1), *factors(DOWN, 1, 1), *embedding_factors()]) | st.text(max_size=60)


@given(st.dictionaries(names, st.tuples(st.sampled_from(["F32", "F16", "BF16", "I8", "X"]), sizes, sizes), max_size=5))
@settings(max_examples=150, deadline=None, suppress_health_check=SLOW_IS_FINE)
def test_any_header_is_taken_or_refused(tmp_path: Path, header: dict[str, tuple[str, list[int], list[int]]]) -> None:
    directory = write_adapter(tmp_path / "fuzzed", {})
    fields = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        for name, (dtype, shape, offsets) in header.items()
    }
    content = builders.with_header(json.dumps(fields).encode(), bytes(256))
    (directory / "adapter_model.safetensors").write_bytes(content)
    read_or_refused(directory)


def read_or_refused(directory: Path) -> None:
    try:
        plan = make_lora_plan([LoraAdapter.read(LoraSpec(directory))], WANTED)
    except UnicornError:
        return
    nbytes = os.path.getsize(directory / "adapter_model.safetensors")
    assert plan.factors.dest_bytes <= 2 * nbytes, "more than the file holds"
