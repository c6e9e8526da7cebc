"""Tokens that were added to a tokenizer, and that the model has no embeddings of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.golden.checkpoints import write_checkpoint
from unicorn_async.cli.main import main
from unicorn_async.engine.files import ModelFiles
from unicorn_async.engine.request_stream import checked_ids
from unicorn_async.errors import CheckpointError, RequestError
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.tokenizer import ChatMessage, Tokenizer

from .checkpoint_files import write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import OpenEngine

NUM_ROWS = 512
IMAGE, TOOL = NUM_ROWS, NUM_ROWS + 1
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}<image>{% endfor %}"


def add_tokens(directory: Path, num_more: int = 0) -> None:
    """Write a tokenizer with two tokens beyond the rows, of which one is special; `num_more` are of its vocabulary."""
    write_tokenizer(directory, NUM_ROWS + num_more)
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    kinds = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for token, special in (("<image>", True), ("<tool>", False)):
        content["added_tokens"].append(
            {"id": len(content["model"]["vocab"]) + (not special), "content": token, "special": special, **kinds}
        )
    path.write_text(json.dumps(content), encoding="utf-8")
    settings = directory / "tokenizer_config.json"
    content = json.loads(settings.read_text(encoding="utf-8")) | {"chat_template": TEMPLATE}
    settings.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_checkpoint("llama", tmp_path)
    add_tokens(tmp_path)
    return tmp_path


async def test_a_model_runs_and_prompts_with_tokens_that_it_has_not_are_refused_by_name(
    open_engine: OpenEngine, model: Path
) -> None:
    ends = {"eos_token_id": [1, IMAGE, 99_999]}  # of which the first alone is ever sampled
    (model / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    async with open_engine(model) as engine:
        params = SamplingParams(max_tokens=4, temperature=0.0, min_tokens=4)
        assert len([token async for token in engine.stream("one <image> two", params)]) == 4
        for prompt in ("one <tool> two", [3, TOOL]):
            with pytest.raises(
                RequestError, match=f"^token {TOOL} \\('<tool>'\\): the model has embeddings of 0 to 511 alone$"
            ):
                [token async for token in engine.stream(prompt, params)]
        asked = engine.tokenizer.encode_chat([ChatMessage("user", "hello")])
        with pytest.raises(RequestError, match=f"^token {IMAGE} \\('<image>'\\): the model has embeddings"):
            [token async for token in engine.stream(asked, params)]
        predicted = [3, TOOL, 4]  # a hint, of which the rest is good
        assert len([token async for token in engine.stream([3], params, prediction=predicted)]) == 4
        with pytest.raises(RequestError, match=r"^token 600: expected"):
            [token async for token in engine.stream([3], params, prediction=[600])]


def test_an_id_that_is_no_token_has_no_text(model: Path) -> None:
    with pytest.raises(RequestError, match=r"^token 600: expected a whole number, 0 to 511$"):
        checked_ids([3, 600], NUM_ROWS, Tokenizer.load(model))


def test_inspect_names_tokens_without_embeddings(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(model)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("tokenizer  "))
    assert line.endswith("514 tokens, no prompt may have 512 '<image>', 513 '<tool>': without embeddings")
    assert main(["inspect", str(model), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tokenizer"]["without_embeddings"]
    assert found == [{"id": IMAGE, "text": "<image>"}, {"id": TOOL, "text": "<tool>"}]


def test_tokens_of_the_vocabulary_itself_have_embeddings(model: Path) -> None:
    add_tokens(model, num_more=1)
    with pytest.raises(CheckpointError, match="has 515 tokens, 513 without added ones beyond, the embeddings have 512"):
        ModelFiles.read(model).check_vocabulary(Tokenizer.load(model))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("bos_token", r"token 512 \('<image>'\) begins every text, the embeddings have 512 rows"),
        ("eos_token", r"only token 512 \('<image>'\) ends answers, the embeddings have 512 rows"),
    ],
)
def test_what_begins_texts_or_ends_answers_has_embeddings(model: Path, part: str, message: str) -> None:
    for name, wanted in (("tokenizer_config.json", "<image>"), ("config.json", None), ("generation_config.json", None)):
        path = model / name
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            content.pop(f"{part}_id", None)
            content |= {part: wanted} if wanted else {}
            path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        ModelFiles.read(model).check_vocabulary(Tokenizer.load(model))
