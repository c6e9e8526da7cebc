"""GGUF files of the golden checkpoints: the same logits, answers and names as from Hugging Face's directories."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.checkpoint.gguf.builders import Tensor, array, write, write_parts
from tests.checkpoint.gguf.encoders import encoded
from tests.checkpoint.gguf.family_files import FAMILY_FILES, write_family
from tests.checkpoint.gguf.golden_files import gguf_metadata, gguf_tensors
from tests.checkpoint.gguf.mixed_file import write_mix
from tests.checkpoint.gguf.test_ollama import write_ollama
from tests.golden.cases import FIRST_CASES, Layout
from tests.golden.checkpoints import golden
from tests.tokenizer.gguf.metadata import byte_level_metadata
from unicorn_async.checkpoint.gguf import ollama
from unicorn_async.checkpoint.gguf.ggml_types import GGML_TYPES
from unicorn_async.cli.main import main
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import UnsupportedModelError

from .checkpoint_files import write_model

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import OpenEngine

TOLERANCE = 1e-2  # in standard deviations of the logits
TEXT_CASES = [name for name, case in FIRST_CASES.items() if case.layout is Layout.TEXT]


def metadata(name: str, folder: Path) -> dict[str, object]:
    """Return a case's metadata with the tokenizer of its directory."""
    backend = Tokenizer.from_file(str(write_model(name, "float16", folder / "hf") / "tokenizer.json"))
    return gguf_metadata(name) | byte_level_metadata(backend, "gpt-2", {"bos": "<bos>", "eos": "<eos>"})


@pytest.mark.combinations("either type in every model")
@pytest.mark.parametrize("kind", ["F16", "F32"])
@pytest.mark.parametrize("name", TEXT_CASES)
async def test_logits_agree_with_the_reference(name: str, kind: str, tmp_path: Path, open_engine: OpenEngine) -> None:
    path = write(tmp_path / f"{name}.gguf", metadata(name, tmp_path), gguf_tensors(name, kind))
    reference = golden(name)
    async with open_engine(path) as engine:
        assert engine.model_name == name
        for index, prompt in enumerate(reference.prompts):
            assert reference.error(index, await engine.logits(prompt)) <= TOLERANCE


@pytest.mark.parametrize("name", FAMILY_FILES)
async def test_a_family_s_logits_agree_with_the_reference(name: str, tmp_path: Path, open_engine: OpenEngine) -> None:
    reference = golden(name)
    async with open_engine(write_family(tmp_path / f"{name}.gguf", name), skip_tokenizer=True) as engine:
        for index, prompt in enumerate(reference.prompts):
            assert reference.error(index, await engine.logits(prompt)) <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama_yarn", "Q8_0"),  # rows in rotary pairs
        ("qwen2_5_vl", "F16"),  # biases
        ("qwen3_5", "Q8_0"),  # gates beside queries, and layers of linear attention
        ("gemma4_small", "F16"),  # layers of two widths, and others' keys and values
        ("glm4_moe", "F16"),
    ],
)
async def test_queries_keys_and_values_may_be_one_tensor(
    name: str, kind: str, tmp_path: Path, open_engine: OpenEngine
) -> None:
    """As the converter writes them with `--fuse-qkv`."""
    prompt, logits = golden(name).prompts[1], []
    for fuses_attention in (False, True):
        quantised = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_qkv.weight") if kind == "Q8_0" else ()
        path = tmp_path / f"{fuses_attention}.gguf"
        write_family(path, name, quantised, fuses_attention=fuses_attention)
        async with open_engine(path, skip_tokenizer=True) as engine:
            logits.append(await engine.logits(prompt))
    assert b"attn_qkv" in (tmp_path / "True.gguf").read_bytes()
    np.testing.assert_array_equal(logits[1], logits[0])


async def test_the_first_files_of_qwen3_next_have_one_tensor_of_its_linear_attention(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    prompt, logits = golden("qwen3_next").prompts[1], []
    for joins_gates in (False, True):
        path = tmp_path / f"{joins_gates}.gguf"
        write_family(path, "qwen3_next", ("ssm_in", "attn_qkv", "attn_gate"), joins_gates=joins_gates)
        async with open_engine(path, skip_tokenizer=True) as engine:
            logits.append(await engine.logits(prompt))
    assert b"ssm_in" in (tmp_path / "True.gguf").read_bytes()
    np.testing.assert_array_equal(logits[1], logits[0])


@pytest.mark.parametrize("quantised", [(), ("ffn_gate.", "ffn_up.", "ffn_down.")], ids=["f16", "q8_0"])
async def test_the_first_files_of_mixtral_have_tensors_for_each_expert(
    quantised: tuple[str, ...], tmp_path: Path, open_engine: OpenEngine
) -> None:
    reference = golden("mixtral")
    path = write_family(tmp_path / "m.gguf", "mixtral", quantised, has_experts_apart=True)
    async with open_engine(path, skip_tokenizer=True) as engine:
        assert reference.error(1, await engine.logits(reference.prompts[1])) <= (0.1 if quantised else TOLERANCE)


@pytest.mark.parametrize(
    ("name", "other"), [("deepseek_v2_lite", "attn_kv_a_mqa.weight"), ("glm4_moe_lite", "attn_q_b.weight")]
)
async def test_matrices_of_latents_may_be_quantised_where_they_are_apart(
    name: str, other: str, tmp_path: Path, open_engine: OpenEngine
) -> None:
    """What makes latents beside queries that are not, too."""
    reference = golden(name)
    path = write_family(tmp_path / "apart.gguf", name, ("attn_k_b", "attn_v_b", other))
    async with open_engine(path, skip_tokenizer=True) as engine:
        logits = await engine.logits(reference.prompts[1])
    errors = np.abs(logits[:, reference.vocabulary] - reference.logits[1]).max(axis=1) / reference.deviation
    assert TOLERANCE / 2 < np.median(errors) < 0.05  # a token may take another expert


async def test_a_matrix_of_keys_and_values_of_older_files_is_taken_apart_unless_it_is_quantised(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    reference = golden("deepseek_v2_lite")
    path = write_family(tmp_path / "joined.gguf", "deepseek_v2_lite", joins_latents=True)
    async with open_engine(path, skip_tokenizer=True) as engine:
        assert reference.error(1, await engine.logits(reference.prompts[1])) <= TOLERANCE
    path = write_family(tmp_path / "old.gguf", "deepseek_v2_lite", ("attn_kv_b",), joins_latents=True)
    with pytest.raises(
        UnsupportedModelError, match=r"attn_kv_b\.weight' is quantised, as Q8_0, and would be taken apart"
    ):
        ModelFiles.read(path)


async def test_a_split_file_answers_as_the_directory_does(tmp_path: Path, open_engine: OpenEngine) -> None:
    tensors = list(gguf_tensors("llama", "F16").items())
    parts = [dict(tensors[start::3]) for start in range(3)]
    paths = write_parts(tmp_path, "tiny", metadata("llama", tmp_path), parts)
    async with open_engine(tmp_path / "hf") as engine:
        wanted = [token.id async for token in engine.stream("some text")]
    async with open_engine(paths[1]) as engine:
        assert engine.model_name == "tiny"
        assert [token.id async for token in engine.stream("some text")] == wanted


async def test_ollama_s_own_gemma_3_has_the_scale_that_its_file_leaves_out(
    tmp_path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ollama, "_SCALED", (6,))
    reference = golden("gemma3")
    async with open_engine(write_ollama(tmp_path / "sha256-0")) as engine:
        assert reference.error(2, await engine.logits(reference.prompts[2])) <= TOLERANCE


@pytest.mark.parametrize("number", [34, 35, 40, 41], ids=lambda number: GGML_TYPES[number].name)
def test_a_type_without_kernels_is_refused_by_its_name(number: int, tmp_path: Path) -> None:
    kind, tensors = GGML_TYPES[number], gguf_tensors("llama", "F16")
    rows = tensors["blk.1.ffn_down.weight"].shape[0]
    tensors["blk.1.ffn_down.weight"] = Tensor(
        number, (rows, 256), bytes(rows * 256 // kind.block_elements * kind.block_bytes)
    )
    path = write(tmp_path / "quantised.gguf", metadata("llama", tmp_path), tensors)
    with pytest.raises(UnsupportedModelError, match=rf"'blk\.1\.ffn_down\.weight': dtype {kind.name} is not supported"):
        ModelFiles.read(path)


async def test_queries_and_gates_may_be_quantised_beside_what_is_not(tmp_path: Path, open_engine: OpenEngine) -> None:
    tensors, reference = gguf_tensors("llama", "F16"), golden("llama")
    for name in ("blk.0.attn_q.weight", "blk.1.attn_k.weight", "blk.1.ffn_gate.weight", "blk.2.ffn_up.weight"):
        values = np.frombuffer(tensors[name].data, np.float16).reshape(tensors[name].shape)
        tensors[name] = encoded("Q8_0", values.astype(np.float32))
    path = write(tmp_path / "mixed.gguf", gguf_metadata("llama"), tensors)
    async with open_engine(path, skip_tokenizer=True) as engine:
        assert [reference.error(n, await engine.logits(reference.prompts[n])) <= 0.1 for n in (0, 1)] == [True, True]


async def test_queries_may_have_another_type_of_floats_than_keys(tmp_path: Path, open_engine: OpenEngine) -> None:
    tensors, reference = gguf_tensors("llama", "F16"), golden("llama")
    for name in ("blk.0.attn_k.weight", "blk.1.attn_q.weight", "blk.2.ffn_up.weight"):
        values = np.frombuffer(tensors[name].data, np.float16).reshape(tensors[name].shape)
        tensors[name] = array("F32" if "attn" in name else "BF16", values.astype(np.float32))
    path = write(tmp_path / "mixed.gguf", gguf_metadata("llama"), tensors)
    async with open_engine(path, skip_tokenizer=True) as engine:
        for index in (0, 2):
            assert reference.error(index, await engine.logits(reference.prompts[index])) <= TOLERANCE


def test_inspect_shows_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "small.gguf", metadata("llama", tmp_path), gguf_tensors("llama", "F16"))
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "small: LlamaForCausalLM in" in shown
    assert "layers 0 to 2 are alike" in shown
    assert shown.count("copied, rows reordered") == 2
    assert "rope_freqs.weight" in shown


@pytest.mark.parametrize(
    ("changes", "num_more", "message"),
    [
        ({"bos_token_id": 99999}, 0, "tokenizer.ggml.bos_token_id: expected an id below 512, got 99999"),
        ({"unknown_token_id": -1}, 0, "tokenizer.ggml.unknown_token_id: expected an id below 512, got -1"),
        ({"pre": "none-such"}, 0, "tokenizer.ggml.pre 'none-such'"),
        ({}, 1, "the tokenizer has 513 tokens, the embeddings have 512 rows"),
    ],
)
def test_inspect_says_of_a_vocabulary_what_a_load_would_refuse(
    changes: dict[str, object], num_more: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = metadata("llama", tmp_path) | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    for key, more in (("tokens", "<more>"), ("token_type", 1)):
        found = fields[f"tokenizer.ggml.{key}"]
        assert isinstance(found, list)
        fields[f"tokenizer.ggml.{key}"] = [*found, *[more] * num_more]
    path = write(tmp_path / "small.gguf", fields, gguf_tensors("llama", "F16"))
    assert main(["inspect", str(path)]) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("tokenizer  "))
    assert "refused: " in line and message in line
    assert main(["inspect", str(path), "--json"]) == 1
    assert message in json.loads(capsys.readouterr().out)["tokenizer"]["refused"]


def test_inspect_says_what_blocks_take_in_memory_beside_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(write_mix(tmp_path / "mix.gguf"))]) == 1  # it has no tokenizer
    lines = capsys.readouterr().out.splitlines()
    for kind, more in (
        ("Q2_K", ""),
        ("Q3_K", " of 3.44 bits a weight to 3.62"),
        ("IQ3_S", " of 3.44 bits a weight to 4.25"),
    ):
        assert any(f" {kind} " in line and line.endswith(f", re-layout{more}") for line in lines)


def test_inspect_says_in_both_tables_that_blocks_are_laid_out_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = gguf_tensors("llama", "F16")
    for name, tensor in tensors.items():
        if len(tensor.shape) == 2:
            tensors[name] = Tensor("Q8_0", tensor.shape, bytes(34 * (tensor.shape[0] * tensor.shape[1] // 32)))
    path = write(tmp_path / "small.gguf", metadata("llama", tmp_path), tensors)
    assert main(["inspect", str(path), "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    blocks = [line for line in lines if line.startswith("blk.0.") and " Q8_0 " in line]
    assert len(blocks) == 7
    assert all(", re-layout" in line and "copied" not in line for line in blocks)
    assert any(line.startswith("FFN") and "re-layout Q8_0" in line for line in lines)
