"""A model's own layer that predicts a token more: it predicts what it has to, and changes no token."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.checkpoint.gguf.family_files import write_family
from unicorn_async.cli.banner import banner
from unicorn_async.config import EngineConfig
from unicorn_async.engine.files import ModelFiles
from unicorn_async.grammar import Grammar
from unicorn_async.scheduler import speculation as scheduling

from .answers import answer, prompt_of
from .predicting_model import NAMES, state_predictor, write_alike, write_hybrid

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf
    from pathlib import Path

    from unicorn_async.engine.engine import Engine
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.scheduler.batch import Batch, Committed
    from unicorn_async.scheduler.sequence import Sequence

    from .conftest import OpenEngine, WriteModel

PROMPT = prompt_of(21)
COUNT = 3  # tokens that are predicted one behind the other
ASKED: list[dict[str, Any]] = [
    {"max_tokens": 40},
    {"max_tokens": 30, "temperature": 1.0, "seed": 3},
    {"max_tokens": 30, "temperature": 0.7, "seed": 4, "top_k": 20, "frequency_penalty": 0.3, "top_logprobs": 2},
    {"max_tokens": 2},
]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tokens drafted wherever they can be, whatever that costs."""

    def wished(
        rates: dict[Sequence, float], most: dict[Sequence, int], *_: object, **__: object
    ) -> dict[Sequence, int]:
        return {sequence: min(most[sequence], COUNT) for sequence in rates}

    monkeypatch.setattr(scheduling, "wished_drafts", wished)


def predictions_of(engine: Engine) -> list[tuple[tuple[int, ...], int, tuple[int, ...]]]:
    """Return where it will be noted what was predicted: behind which tokens of the answer, and which ones."""
    noted: list[tuple[tuple[int, ...], int, tuple[int, ...]]] = []
    commit = engine._scheduler.commit

    def note(batch: Batch, sampled: SequenceOf[int], **given: Any) -> list[Committed]:
        predicted, parts = given["predicted"], [item for item in batch.scheduled if item.samples]
        found = commit(batch, sampled, **given)
        for item, token, more in zip(parts, sampled, predicted, strict=True):
            before = item.sequence.token_ids(0, item.start + item.num_tokens)
            if not item.proposal or before[item.start :] == item.token_ids:
                is_newest = item.sequence.num_seen == len(before) + 1
                noted.append((before, token, more if is_newest else more[:1]))
        return found

    engine._scheduler.commit = note  # type: ignore[method-assign]
    return noted


@pytest.mark.parametrize("family", NAMES)
async def test_it_predicts_what_its_weights_say(
    family: str, open_engine: OpenEngine, tmp_path: Path, always: None
) -> None:
    model = write_alike(family, tmp_path / "model")
    async with open_engine(model, speculation="auto", max_num_batched_tokens=16) as engine:  # the prompt in two parts
        noted = predictions_of(engine)
        await answer(engine, PROMPT, max_tokens=5)
        assert len(noted) == 5 and len(noted[0][2]) == COUNT
        for before, token, more in noted:
            behind = await engine.logits((*before[1:], token, *more[:-1]))
            assert more == tuple(behind[-len(more) :].argmax(axis=1))


@pytest.mark.parametrize("family", NAMES)
async def test_a_gguf_file_s_predicts_of_the_state_what_its_weights_say(
    family: str, open_engine: OpenEngine, tmp_path: Path, always: None
) -> None:
    path = write_family(tmp_path / "model.gguf", family, predictor=state_predictor(family))
    async with open_engine(path, speculation="auto", skip_tokenizer=True) as engine:
        noted = predictions_of(engine)
        found = await answer(engine, PROMPT, max_tokens=6)
        assert engine.predicts and len(set(found.ids)) > 2
        assert [token for _, token, _ in noted] == found.ids and len(noted[0][2]) == COUNT
        assert all(more == len(more) * (token,) for _, token, more in noted)


async def test_one_whose_weights_are_in_fp8_is_left_out_and_that_is_said(
    tmp_path: Path, open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Its scales are not read; the model runs as it would without."""
    model = write_hybrid(tmp_path / "model", is_right=False)
    assert ModelFiles.read(model, predicts=True).config.predicts
    file = model / "model.safetensors"
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    entry = header["mtp.fc.weight"]
    header["mtp.fc.weight"] = {**entry, "dtype": "F8_E4M3", "shape": [entry["shape"][0], 4 * entry["shape"][1]]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
    reason = "1 of its tensors are not in F32, F16 or BF16, first 'mtp.fc.weight'"
    async with open_engine(model, speculation="auto") as engine:
        assert not engine.predicts and engine.predictor_left_out == reason
        assert f"draft    not by the model's own layer: {reason}" in banner(engine)
    assert f"the layer that predicts a token more is left out: {reason}" in caplog.messages
    assert not ModelFiles.read(model, predicts=False).predictor_left_out


def test_one_that_lacks_a_tensor_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    model = write_hybrid(tmp_path / "model", is_right=False)
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"mtp.norm.weight"', b'"mtp.gone.weight"'))
    files = ModelFiles.read(model, predicts=True)
    assert not files.config.predicts
    assert files.predictor_left_out == "1 of its tensors are missing, first 'mtp.norm.weight'"


async def test_one_of_a_model_whose_attention_runs_elsewhere_is_left_out_and_that_is_said(
    tmp_path: Path, open_engine: OpenEngine, device_info: DeviceInfo, caplog: pytest.LogCaptureFixture
) -> None:
    model = write_alike("glm4_moe", tmp_path / "model")
    elsewhere = f"vulkan:{device_info.index}"
    reason = f"nothing is proposed to a model whose attention runs elsewhere: attention {elsewhere}"
    async with open_engine(model, speculation="auto", attention=elsewhere) as engine:
        assert not engine.predicts and engine.predictor_left_out == reason
        assert f"draft    not by the model's own layer: {reason}" in banner(engine)
    assert f"the layer that predicts a token more is left out: {reason}" in caplog.messages


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"attention": "auto"}, "nothing is proposed to a model whose attention may run elsewhere: attention auto"),
        ({"attention": "auto", "speculation": "off"}, ""),
        ({"attention": "npu", "draft": "none"}, ""),
        ({}, ""),
    ],
)
def test_it_is_said_of_a_layer_that_somebody_wants(options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    config = EngineConfig(**options)
    model = write_alike("glm4_moe", tmp_path / "model")
    assert ModelFiles.read(model, no_predictor=config.no_predictor).predictor_left_out == reason


def test_nothing_is_said_of_a_layer_that_is_not_there(model_directory: WriteModel) -> None:
    assert not ModelFiles.read(model_directory("glm4_moe"), no_predictor="attention npu").predictor_left_out


async def ask_all(engine: Engine) -> list[list[int]]:
    alone = [(await answer(engine, prompt_of(20, number), **asked)).ids for number, asked in enumerate(ASKED)]
    asking = (answer(engine, prompt_of(20, number), **asked) for number, asked in enumerate(ASKED))
    return [*alone, *(one.ids for one in await asyncio.gather(*asking))]


@pytest.mark.parametrize("is_right", [False, True], ids=["wrong", "right"])
async def test_answers_are_those_without_it(
    is_right: bool, open_engine: OpenEngine, tmp_path: Path, always: None
) -> None:
    model = write_hybrid(tmp_path / "model", is_right=is_right)
    async with open_engine(model, speculation="auto", draft="none") as engine:
        assert not engine.predicts
        expected = await ask_all(engine)
        steps = engine.stats().steps
    async with open_engine(model, speculation="auto") as engine:
        assert await ask_all(engine) == expected
        assert engine.predicts and engine.memory.agrees is not False
        stats = engine.stats()
        assert stats.drafted_tokens > 60
        assert (stats.running, stats.blocks_used) == (0, 0)
        speculation = engine._scheduler.speculation
        assert speculation is not None and speculation.drafts is not None
        assert speculation.drafts.step_s > 0  # what each token behind the first one takes
        if is_right:
            assert stats.drafted_tokens_right > 0.9 * stats.drafted_tokens
            assert stats.steps < 0.7 * steps


@pytest.mark.parametrize("is_right", [False, True], ids=["wrong", "right"])
async def test_answers_with_a_grammar_are_those_without_it(
    is_right: bool, open_engine: OpenEngine, tmp_path: Path, always: None
) -> None:
    model = write_hybrid(tmp_path / "model", is_right=is_right)
    grammar = Grammar.regex(r"[ -~]{8}( and so on)[ -~]{6}")
    chosen: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 3, "top_logprobs": 2}]
    asked = [{"max_tokens": 40, "grammar": grammar, "ignore_eos": False, **one} for one in chosen]

    async def ask(engine: Engine) -> list[list[int]]:
        alone = (await answer(engine, PROMPT, **asked[0])).ids
        asking = (answer(engine, PROMPT, **one) for one in [*asked, ASKED[1]])
        return [alone, *(one.ids for one in await asyncio.gather(*asking))]

    async with open_engine(model, speculation="auto") as engine:
        found, stats = await ask(engine), engine.stats()
        num_wrong = stats.drafted_tokens - stats.drafted_tokens_right
        assert stats.drafted_tokens_right > 10 if is_right else num_wrong > 10
        assert (stats.running, stats.blocks_used, len(engine._guides)) == (0, 0, 0)
        engine._scheduler.speculation = None
        assert await ask(engine) == found
