"""A draft model changes no token; its state follows the sequences that it drafts for, and ends with them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.checkpoint.gguf.plain_strings import SEPARATOR, PlainStrings
from unicorn_async.engine import draft_files
from unicorn_async.engine.draft_files import token_texts
from unicorn_async.engine.drafter import Drafter
from unicorn_async.errors import (
    ConfigError,
    EngineClosedError,
    OutOfMemoryError,
    TokenizerError,
    UnsupportedModelError,
)
from unicorn_async.grammar import Grammar
from unicorn_async.memory.states import StatePlan
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler import speculation as scheduling
from unicorn_async.scheduler.draft_book import DraftBook
from unicorn_async.tokenizer import ChatMessage

from .answers import answer, prompt_of
from .cut_model import MODEL, write_cut
from .test_speculation import GUIDED, ask_guided

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from unicorn_async.engine.engine import Engine
    from unicorn_async.engine.types import Token
    from unicorn_async.scheduler.batch import Batch
    from unicorn_async.scheduler.sequence import Sequence

    from .conftest import OpenEngine, WriteModel

QUESTIONS = ["Tell me about the sea.", "What is 17 + 25?", "Who are you?", "Name three colours."]
ASKED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "seed": 3, "top_p": 0.9},
    {"temperature": 1.0, "seed": 4, "frequency_penalty": 0.4, "repetition_penalty": 1.1, "top_logprobs": 2},
    {"logit_bias": {7: 3.0, 9: -100.0}, "stop": ("e",), "min_tokens": 12, "ignore_eos": False},
    {"grammar": Grammar.regex("(the same words, ){2}end")},
]


@pytest.fixture(scope="session")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model without its last layer."""
    return write_cut(tmp_path_factory.mktemp("draft") / "cut", 7)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have up to four tokens drafted wherever they can be, whatever that costs."""

    def wished(
        rates: dict[Sequence, float], most: dict[Sequence, int], *_: object, **__: object
    ) -> dict[Sequence, int]:
        return {sequence: min(most[sequence], 4) for sequence in rates}

    monkeypatch.setattr(scheduling, "wished_drafts", wished)


async def ask(engine: Engine, number: int, most: int = 32, **asked: Any) -> list[Token]:
    prompt = engine.tokenizer.encode_chat([ChatMessage("user", QUESTIONS[number % len(QUESTIONS)])])
    params = SamplingParams(**({"max_tokens": most, "ignore_eos": True} | asked))
    return [token async for token in engine.stream(prompt, params)]


def ids_of(answers: list[list[Token]]) -> list[list[int]]:
    return [[token.id for token in tokens] for tokens in answers]


def nothing_is_left(engine: Engine) -> bool:
    drafter, stats = engine._drafter, engine.stats()
    assert drafter is not None
    return (stats.running, stats.blocks_used, drafter.num_sequences, drafter.blocks_used) == (0, 0, 0, 0)


async def test_whatever_is_asked_for_comes_as_it_comes_without(
    open_engine: OpenEngine, cut: Path, always: None
) -> None:
    async with open_engine(MODEL) as engine:
        expected = [await ask(engine, number, **asked) for number, asked in enumerate(ASKED)]
    async with open_engine(MODEL, speculation="lookup", draft=cut) as engine:
        await engine.draft_loaded()
        assert engine.draft is not None and engine.draft.is_loaded and engine.draft.name == "cut"
        assert engine.memory.agrees is not False
        found = [await ask(engine, number, **asked) for number, asked in enumerate(ASKED)]
        stats = engine.stats()
        assert stats.drafted_tokens > stats.drafted_tokens_right > 20
        assert stats.steps < sum(map(len, found))
        together = await asyncio.gather(*(ask(engine, number, **asked) for number, asked in enumerate(ASKED[:4])))
        assert engine.stats().drafted_tokens_right > stats.drafted_tokens_right + 20
        assert nothing_is_left(engine)
    assert ids_of(found) == ids_of(expected)
    assert ids_of(together) == ids_of(expected[:4])
    assert [token.text for token in found[3]] == [token.text for token in expected[3]]


@pytest.mark.whole("grammars beside drafts of a model")
async def test_answers_with_a_grammar_are_those_without_and_what_it_allows_is_drafted_too(
    open_engine: OpenEngine, cut: Path, always: None
) -> None:
    asked = [GUIDED[0], GUIDED[2], {"temperature": 0.7, "seed": 6, "max_tokens": 12, "ignore_eos": True}]
    async with open_engine(MODEL) as engine:
        expected = ids_of([await ask_guided(engine, one) for one in asked])
    async with open_engine(MODEL, speculation="lookup", draft=cut) as engine:
        await engine.draft_loaded()
        found = ids_of([await ask_guided(engine, asked[0])])
        stats = engine.stats()
        assert stats.drafted_tokens > stats.drafted_tokens_right > 0  # the grammar and the text propose most of it
        found += ids_of(await asyncio.gather(*(ask_guided(engine, one) for one in asked[1:])))
        assert engine.stats().drafted_tokens_right > stats.drafted_tokens_right
        assert nothing_is_left(engine)
        assert len(engine._guides) == 0
    assert found == expected


async def test_who_leaves_or_loses_its_place_or_begins_alike_takes_its_draft_along(
    open_engine: OpenEngine, cut: Path, always: None
) -> None:
    tight = {"max_num_seqs": 4, "max_context": 128, "kv_cache_bytes": 1 << 19}

    async def ask_some(engine: Engine) -> list[list[int]]:
        answers = (ask(engine, number, 60, temperature=0.5, seed=number) for number in range(4))
        return ids_of(await asyncio.gather(*answers))

    async def leave(engine: Engine) -> None:
        prompt = engine.tokenizer.encode_chat([ChatMessage("user", QUESTIONS[0])])
        async for _ in engine.stream(prompt, SamplingParams(max_tokens=60, ignore_eos=True)):
            if engine.stats().drafted_tokens:
                return

    async with open_engine(MODEL, **tight) as engine:
        expected = await ask_some(engine)
    async with open_engine(MODEL, speculation="lookup", draft=cut, **tight) as engine:
        await engine.draft_loaded()
        await leave(engine)
        # On a GPU steps of other sizes round otherwise, and who draws of tokens that are alike draws another one then.
        is_exact = engine.device.is_software
        assert await ask_some(engine) == expected or not is_exact
        stats = engine.stats()
        assert stats.preemptions > 0
        assert await ask_some(engine) == expected or not is_exact  # the prompts are known now, to both models
        assert engine.stats().drafted_tokens_right > stats.drafted_tokens_right > 20
        assert nothing_is_left(engine)


async def test_requests_go_on_while_the_draft_model_loads_and_its_failure_is_everyone_s(
    open_engine: OpenEngine, cut: Path, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(Drafter, "_filled", never)
        async with open_engine(MODEL, speculation="lookup", draft=cut) as engine:
            assert engine.draft is not None and not engine.draft.is_loaded
            assert len(await ask(engine, 0, 3)) == 3  # and it is closed before it drafts
    async with open_engine(MODEL, speculation="lookup", draft=cut) as engine:
        await engine.draft_loaded()
        drafts = asyncio.Event()

        def begin(book: DraftBook, counts: Mapping[Sequence, int], number: int) -> Batch:
            if number == 1:
                drafts.set()
            return step(book, counts, number)

        step = DraftBook.step
        monkeypatch.setattr(DraftBook, "step", begin)
        asking = asyncio.create_task(ask(engine, 0, 400))
        await drafts.wait()
    with pytest.raises(EngineClosedError):  # it is closed while it drafts
        await asking

    async def fails(*_: object) -> None:
        raise OutOfMemoryError("no memory for a draft")

    monkeypatch.setattr(Drafter, "_filled", fails)
    async with open_engine(MODEL, speculation="lookup", draft=cut) as engine:
        with pytest.raises(OutOfMemoryError, match="no memory for a draft"):
            await engine.draft_loaded()
        with pytest.raises(OutOfMemoryError, match="no memory for a draft"):
            await ask(engine, 0)


async def test_what_can_not_draft_is_refused_by_name(
    open_engine: OpenEngine, cut: Path, model_directory: WriteModel, tmp_path: Path
) -> None:
    for draft, options, error, match in (
        (model_directory("gemma3"), {}, ConfigError, r"draft gemma3-bfloat16: its vocabulary is not that of model: \d"),
        (tmp_path / "missing", {}, ConfigError, "missing"),
        (cut, {"speculation": "off"}, ConfigError, "draft: .*cut would propose tokens, and speculation is off"),
        (cut, {"attention": "vulkan:0"}, UnsupportedModelError, "nothing can be proposed to"),
    ):
        with pytest.raises(error, match=match):
            async with open_engine(MODEL, **({"speculation": "auto", "draft": draft} | options)):
                pass


async def test_a_model_with_a_state_of_fixed_size_takes_drafts_too(
    open_engine: OpenEngine, model_directory: WriteModel, always: None
) -> None:
    async with open_engine("lfm2") as engine:
        expected = [(await answer(engine, prompt_of(20, number), max_tokens=24)).ids for number in range(2)]
    async with open_engine("lfm2", speculation="auto", draft=model_directory("gemma3")) as engine:
        await engine.draft_loaded()
        asked = (answer(engine, prompt_of(20, number), max_tokens=24) for number in range(2))
        found = await asyncio.gather(*asked)
        assert engine.stats().drafted_tokens > 40
        short = await asyncio.gather(*(answer(engine, prompt_of(6, number), max_tokens=6) for number in range(4)))
        assert [len(one.ids) for one in short] == [6] * 4  # more positions together than a step checks at once
        assert nothing_is_left(engine)
    assert [one.ids for one in found] == expected


@pytest.mark.parametrize(
    "family",
    ["qwen3_5", *(pytest.param(name, marks=pytest.mark.whole("other kinds of states")) for name in ("lfm2", "rwkv7"))],
)
async def test_one_with_a_state_of_fixed_size_drafts_and_takes_wrong_tokens_back(
    family: str, open_engine: OpenEngine, model_directory: WriteModel, always: None
) -> None:
    """It drafts for itself: what is right stays right behind tokens that a penalty has made wrong."""
    asked: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "seed": 3},
        {"repetition_penalty": 2.0, "frequency_penalty": 2.0},
    ]
    prompts = [prompt_of(20 + 30 * number, number) for number in range(len(asked))]

    async def ask_some(engine: Engine, *numbers: int) -> list[list[int]]:
        asking = (answer(engine, prompts[number], max_tokens=24, **asked[number]) for number in numbers)
        return [one.ids for one in await asyncio.gather(*asking)]

    async with open_engine(family) as engine:
        expected = await ask_some(engine, 0, 1, 2)
    kept = {} if family == "rwkv7" else {"kv_host_bytes": 1 << 20}  # which is not for drafts
    async with open_engine(family, speculation="lookup", draft=model_directory(family), **kept) as engine:
        await engine.draft_loaded()
        assert engine.memory.agrees is not False and not engine._model.draft.options.keeps_blocks
        assert await ask_some(engine, 0, 1) == expected[:2]
        before = engine.stats()
        assert before.drafted_tokens_right > max(0.9 * before.drafted_tokens, 25)
        assert await ask_some(engine, 0, 1, 2) == expected
        stats = engine.stats()
        assert (
            40 < stats.drafted_tokens_right - before.drafted_tokens_right < stats.drafted_tokens - before.drafted_tokens
        )
        assert nothing_is_left(engine)


async def test_one_without_memory_for_states_to_go_back_to_is_refused(
    open_engine: OpenEngine, model_directory: WriteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StatePlan, "can_go_back", property(lambda plan: not plan.nbytes))
    with pytest.raises(OutOfMemoryError, match=r"draft lfm2-bfloat16: no tokens are proposed: .* 2 states of \d"):
        async with open_engine("gemma3", speculation="auto", draft=model_directory("lfm2")):
            pass


async def test_what_a_model_before_it_left_on_the_device_is_no_reason_to_refuse_a_draft(
    open_engine: OpenEngine, cut: Path
) -> None:
    async with open_engine(MODEL, speculation="lookup", draft=cut) as engine:
        info, files = engine.device, engine._model.draft
        assert files is not None
        full = replace(info, heaps=tuple(replace(heap, used=heap.budget) for heap in info.heaps))
        assert files.nbytes(full) == files.nbytes(info)


def test_a_large_vocabulary_of_a_gguf_file_is_told_as_a_small_one_is() -> None:
    texts = tuple(f"▁{number}" for number in range(5000))
    plain = PlainStrings((b"".join(SEPARATOR.encode() + text.encode() for text in texts),), len(texts))
    assert token_texts({"tokenizer.ggml.tokens": plain}) == dict(enumerate(texts))
    for wrong in (None, "text", 7):
        with pytest.raises(TokenizerError, match="tokens: expected a list of texts"):
            token_texts({"tokenizer.ggml.tokens": wrong})


@pytest.mark.parametrize(
    ("own", "wanted", "where"),
    [
        ("abcd", "abcd", None),
        ("abc", "abcde", None),  # an image's tokens, say, or padding, at the end of one
        ("abcde", "abc", None),
        ("abxd", "abcd", 2),
        ("ab d", "abcd", 2),
        ("", "abcd", 0),
    ],
)
def test_a_draft_s_vocabulary_may_end_elsewhere_and_is_the_same_up_to_there(
    monkeypatch: pytest.MonkeyPatch, own: str, wanted: str, where: int | None
) -> None:
    monkeypatch.setattr(
        draft_files, "token_texts", lambda text: {at: token for at, token in enumerate(text) if token != " "}
    )
    draft, target = (SimpleNamespace(name=name, tokenizer_source=text) for name, text in (("d", own), ("t", wanted)))
    if where is None:
        draft_files.check_vocabularies(draft, target)
        return
    with pytest.raises(ConfigError, match=f"draft d: its vocabulary is not that of t: .* token {where} is"):
        draft_files.check_vocabularies(draft, target)
