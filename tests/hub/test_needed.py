"""Of a repository no more is brought than makes the model."""

from __future__ import annotations

import pytest

from unicorn_async.checkpoint.hub import HubName
from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.hub.needed import RepoFile, indexed_files, needed_files

PLAIN = HubName("org/m", None)
OF_A_MODEL = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
BESIDE = (
    "README.md",
    "LICENSE",
    ".gitattributes",
    "tokenizer.model",
    "original/consolidated.00.pth",
    "onnx/model.onnx",
)
GGUFS = (
    "m-Q4_K_M.gguf",
    "m-UD-Q4_K_XL.gguf",
    "m-Q8_0.gguf",
    "BF16/m-BF16-00001-of-00002.gguf",
    "BF16/m-BF16-00002-of-00002.gguf",
    "mmproj-F16.gguf",
    "imatrix_unsloth.gguf",
)


def listing(*names: str) -> list[RepoFile]:
    return [RepoFile(name, 1000 * (index + 1), None) for index, name in enumerate(names)]


def names_of(name: HubName, *files: str) -> tuple[list[str], list[str] | None]:
    found = needed_files(name, listing(*files))
    weights = None if found.weights is None else [file.name for file in found.weights]
    return [file.name for file in found.descriptions], weights


def test_of_safetensors_the_one_file_or_those_of_the_index() -> None:
    duplicates = ("consolidated.safetensors", "pytorch_model.bin", "model.fp16.safetensors")
    assert names_of(PLAIN, *OF_A_MODEL, *BESIDE, *duplicates, "model.safetensors") == (
        ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"],
        ["model.safetensors"],
    )
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    small, weights = names_of(PLAIN, *OF_A_MODEL, *duplicates, *shards, "model.safetensors.index.json")
    assert small[-1] == "model.safetensors.index.json"
    assert weights is None
    files = listing(*duplicates, *shards)
    assert [file.name for file in indexed_files(PLAIN, files, [shards[1], shards[0], shards[1]])] == list(shards)
    with pytest.raises(ConfigError, match=r"names model-9\.safetensors, which is not in the repository"):
        indexed_files(PLAIN, files, ["model-9.safetensors"])


@pytest.mark.parametrize(
    ("tag", "wanted"),
    [
        (None, ["m-Q4_K_M.gguf"]),
        ("q8_0", ["m-Q8_0.gguf"]),
        ("Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
        ("BF16", ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]),
        ("m-Q8_0.gguf", ["m-Q8_0.gguf"]),
    ],
)
def test_of_gguf_files_the_one_that_is_meant_with_all_its_parts(tag: str | None, wanted: list[str]) -> None:
    assert names_of(HubName("org/m", tag), *GGUFS, *BESIDE) == ([], wanted)


def test_the_only_gguf_model_needs_no_tag_and_a_tag_comes_before_safetensors() -> None:
    assert names_of(PLAIN, "README.md", "config.json", "m-IQ2_M.gguf", "mmproj-F16.gguf") == ([], ["m-IQ2_M.gguf"])
    files = (*OF_A_MODEL, "model.safetensors", "m-Q8_0.gguf", "m-Q4_K_M.gguf")
    assert names_of(PLAIN, *files)[1] == ["model.safetensors"]
    assert names_of(HubName("org/m", "Q8_0"), *files) == ([], ["m-Q8_0.gguf"])


@pytest.mark.parametrize(
    "beside",
    [
        "m.mmproj-Q8_0.gguf",
        "m-mmproj-f16.gguf",
        "m-mmproj.gguf",
        "MMPROJ-m.gguf",
        "mmproj.gguf",
        "mtp-m-Q4_K_M.gguf",
        "imatrix_m.gguf",
    ],
)
def test_what_lies_beside_a_gguf_model_is_none(beside: str) -> None:
    assert names_of(PLAIN, "m-IQ2_M.gguf", beside) == ([], ["m-IQ2_M.gguf"])


def test_a_model_may_have_a_name_like_theirs() -> None:
    assert names_of(PLAIN, "m-mtp-Q8_0.gguf") == ([], ["m-mtp-Q8_0.gguf"])


def test_a_world_vocabulary_stands_for_tokenizer_json() -> None:
    files = ("config.json", "model.safetensors", "rwkv_vocab_v20230424.txt", "hf_rwkv_tokenizer.py")
    assert names_of(PLAIN, *files) == (["config.json", "rwkv_vocab_v20230424.txt"], ["model.safetensors"])


def test_an_adapter_is_its_two_files() -> None:
    files = ("README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json")
    for also in ([], ["config.json"]):
        assert names_of(PLAIN, *files, *also) == (["adapter_config.json"], ["adapter_model.safetensors"])
    model = ("config.json", "tokenizer.json", "model.safetensors")
    assert names_of(PLAIN, *files, *model)[1] == ["model.safetensors"]
    assert names_of(PLAIN, *files, "m-Q8_0.gguf")[1] == ["adapter_model.safetensors"]


@pytest.mark.parametrize(
    ("tag", "files", "kind", "message"),
    [
        ("Q5_0", GGUFS, ConfigError, r"org/m:Q5_0: no GGUF model of that tag .*org/m:BF16 \(0\.0 MB\), org/m:Q4_K_M "),
        (None, ("a-Q8_0.gguf", "b-Q8_0.gguf"), ConfigError, r"give one of org/m:a-Q8_0 .*, org/m:b-Q8_0 "),
        ("Q8_0", ("a-Q8_0.gguf", "b-Q8_0.gguf"), ConfigError, r"2 GGUF models are meant; give one of org/m:a-Q8_0"),
        ("Q8_0", ("m-Q8_0-00001-of-00002.gguf",), ConfigError, "no GGUF model of that tag"),
        ("Q8_0", OF_A_MODEL, ConfigError, "none: it has no GGUF files"),
        (None, ("README.md",), ConfigError, r"neither model\.safetensors, .* nor a GGUF file"),
        (None, ("config.json", "pytorch_model.bin"), UnsupportedModelError, r"weights in pytorch_model\.bin"),
        (None, ("model.safetensors", "tokenizer.json"), ConfigError, r"config\.json is not in the repository"),
        (
            None,
            ("model.safetensors", "config.json"),
            UnsupportedModelError,
            r"tokenizer\.json is not in the repository",
        ),
        (None, ("../../m-Q8_0.gguf", "/etc/m.gguf", "a/../b.gguf", ".x.gguf"), ConfigError, "neither"),
    ],
)
def test_what_is_no_model_is_told_before_anything_is_brought(
    tag: str | None, files: tuple[str, ...], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        needed_files(HubName("org/m", tag), listing(*files))
