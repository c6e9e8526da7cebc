"""Quantised weights: made while a checkpoint is loaded, or kept as a GGUF file has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.checkpoint.gguf.builders import Tensor, array, write
from tests.checkpoint.gguf.golden_files import gguf_metadata, gguf_tensors
from tests.golden.checkpoints import golden
from tests.golden.demo import demo_answers
from tests.ops.gguf_blocks import dequantize
from tests.tokenizer.gguf.metadata import byte_level_metadata
from unicorn_async.config import WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.tensor import QuantFormat
from unicorn_async.tokenizer import ChatMessage

from .answers import answer
from .checkpoint_files import write_model
from .test_demo_model import MODEL, QUESTIONS

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tests.golden.checkpoints import Golden
    from unicorn_async.engine.engine import Engine

    from .conftest import OpenEngine

# Root of the mean squared error of a prompt's logits, in their standard deviations. The checkpoints have random weights
# of one size; trained ones lose less.
BOUNDS = {WeightScheme.F16: 2e-3, WeightScheme.INT8: 0.04, WeightScheme.INT4: 0.35, WeightScheme.NF4: 0.45}
INPUTS = 0.03  # of that, from activations in blocks of int8
CASES = {
    WeightScheme.F16: ("gemma3", "llama"),
    WeightScheme.INT8: ("gemma3", "gemma3_large", "llama", "mistral", "qwen2", "qwen3"),
    WeightScheme.INT4: ("gemma3", "gemma3_large", "llama", "qwen2"),
    WeightScheme.NF4: ("llama", "llama_tied"),
}
MORE_MODELS = pytest.mark.whole("what is quantised in more models: biases, norms, windows, wider rows")
TYPE_NUMBERS = {QuantFormat.Q4_0: 2, QuantFormat.Q5_1: 7, QuantFormat.Q8_0: 8}
KINDS = {"attn_q.": QuantFormat.Q4_0, "attn_v.": QuantFormat.Q8_0, "ffn_up.": QuantFormat.Q5_1}  # the others: Q8_0


async def errors(engine: Engine, reference: Golden) -> list[float]:
    """The root of the mean squared error of each prompt's logits."""
    found = [await engine.logits(prompt) for prompt in reference.prompts]
    return [
        float(np.sqrt(np.mean((logits[:, reference.vocabulary] - right) ** 2)) / reference.deviation)
        for logits, right in zip(found, reference.logits, strict=True)
    ]


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        pytest.param(scheme, name, marks=MORE_MODELS if name != names[0] else ())
        for scheme, names in CASES.items()
        for name in names
    ],
)
async def test_logits_stay_within_what_the_format_loses(
    scheme: WeightScheme, name: str, open_engine: OpenEngine
) -> None:
    async with open_engine(name, "bfloat16", weights=scheme) as engine:
        found = await errors(engine, golden(name))
    assert max(found) <= BOUNDS[scheme]
    assert scheme is WeightScheme.F16 or min(found) > 1e-3, "nothing was quantised"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
async def test_every_source_type_is_quantised(dtype: str, open_engine: OpenEngine) -> None:
    async with open_engine("llama", dtype, weights=WeightScheme.INT8) as engine:
        assert max(await errors(engine, golden("llama"))) <= BOUNDS[WeightScheme.INT8]


async def test_the_kernels_of_the_formats_ran(open_engine: OpenEngine) -> None:
    async with open_engine("llama", weights=WeightScheme.INT4) as engine:
        await engine.logits(golden("llama").prompts[3])
        await engine.loaded()
        names = {kernel.split("[")[0] for kernel in engine.kernels}
    assert {"quantize_bf16_int4", "quantize_bf16_int8", "embed_quant_q8"} <= names
    linears = {name for name in names if name.startswith("linear_")}
    assert linears
    assert all(name.endswith(("_q4", "_q8")) for name in linears), linears


@pytest.mark.whole("that a trained model's answers are the same in int8; logits of random ones are compared always")
async def test_the_demo_model_answers_as_before_in_int8(open_engine: OpenEngine) -> None:
    async with open_engine(MODEL, weights=WeightScheme.INT8) as engine:
        for question, right in QUESTIONS.items():
            prompt = engine.tokenizer.encode_chat([ChatMessage("user", question)])
            found = await answer(engine, prompt, ignore_eos=False, max_tokens=64)
            assert right in found.text
        same = total = 0
        for one in demo_answers():
            continued = (await answer(engine, one.prompt, max_tokens=16)).ids
            same += sum(a == b for a, b in zip(continued, one.continuation, strict=False))
            total += 16
    assert same >= 0.9 * total


def as_blocks(kind: QuantFormat, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Values quantised in the plainest way, as a file's blocks."""
    rows = values.reshape(-1, 32)
    low, high = rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True)
    if kind is QuantFormat.Q5_1:
        pair = np.concatenate([(high - low) / 31, low], axis=1).astype(np.float16)
        codes = np.clip(np.rint((rows - pair[:, 1:]) / pair[:, :1]), 0, 31).astype(np.uint8)
        fifth = np.packbits(codes >> 4, axis=1, bitorder="little")
        return np.concatenate([pair.view(np.uint8), fifth, nibbles(codes & 15)], axis=1)
    steps = 127 if kind is QuantFormat.Q8_0 else 7
    scale = (np.maximum(-low, high) / steps).astype(np.float16)
    codes = np.clip(np.rint(rows / scale), -steps, steps).astype(np.int8)
    body = codes.view(np.uint8) if kind is QuantFormat.Q8_0 else nibbles((codes + 8).astype(np.uint8))
    return np.concatenate([scale.view(np.uint8), body], axis=1)


def nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return codes[:, :16] | codes[:, 16:] << 4


def quantised_files(name: str, folder: Path) -> tuple[Path, Path]:
    """A case as a file with blocks of several types, and one with the values that these stand for."""
    backend = Tokenizer.from_file(str(write_model(name, "float16", folder / "hf") / "tokenizer.json"))
    metadata = gguf_metadata(name) | byte_level_metadata(backend, "gpt-2", {"bos": "<bos>", "eos": "<eos>"})
    blocks, plain = {}, {}
    for key, tensor in gguf_tensors(name, "F32").items():
        blocks[key] = plain[key] = tensor
        if len(tensor.shape) == 2:
            kind = next((kind for part, kind in KINDS.items() if part in key), QuantFormat.Q8_0)
            packed = as_blocks(kind, np.frombuffer(tensor.data, np.float32))
            blocks[key] = Tensor(TYPE_NUMBERS[kind], tensor.shape, packed.tobytes())
            plain[key] = array("F32", dequantize(kind, packed, *tensor.shape))
    return write(folder / "blocks.gguf", metadata, blocks), write(folder / "plain.gguf", metadata, plain)


@pytest.mark.parametrize("name", ["gemma3", *(pytest.param(name, marks=MORE_MODELS) for name in ("llama", "qwen2"))])
async def test_a_gguf_file_s_blocks_are_computed_on_as_they_are(
    name: str, tmp_path: Path, open_engine: OpenEngine
) -> None:
    """Parts of one product may have different types, and rows of Llama's may lie in another order."""
    reference = golden(name)
    quantised, plain = quantised_files(name, tmp_path)
    async with open_engine(plain) as engine:
        right = [await engine.logits(prompt) for prompt in reference.prompts]
    async with open_engine(quantised) as engine:
        found = [await engine.logits(prompt) for prompt in reference.prompts]
        assert any(kernel.startswith("relayout_q5_1") for kernel in engine.kernels)
    for one, other in zip(found, right, strict=True):
        assert np.sqrt(np.mean((one - other) ** 2)) <= INPUTS * reference.deviation


def test_a_quantised_file_is_not_quantised_again(tmp_path: Path) -> None:
    quantised, _ = quantised_files("llama", tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"is quantised as Q8_0 already, so its weights can't become int4"):
        ModelFiles.read(quantised, WeightScheme.INT4)


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    directory = write_model("qwen3", "bfloat16", tmp_path / "qwen3")
    with pytest.raises(UnsupportedModelError, match=r"rows of 96 elements are no whole blocks of nf4, which have 64"):
        ModelFiles.read(directory, WeightScheme.NF4)
