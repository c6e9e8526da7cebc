"""Tokenizers from GGUF metadata beside the tokenizer.json files that the metadata is written from."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer import builders
from unicorn_async.errors import RequestError, TokenizerError
from unicorn_async.tokenizer import ChatMessage, Tokenizer

from .families import family
from .metadata import CONTROL, NORMAL, UNUSED, USER_DEFINED, as_read, byte_level_metadata, with_types
from .vocabularies import NAMED, TEXTS, byte_level, sentencepiece

if TYPE_CHECKING:
    from pathlib import Path


def assert_same(found: Tokenizer, wanted: Tokenizer, texts: list[str]) -> None:
    for text in texts:
        ids = wanted.encode(text)
        assert found.encode(text) == ids, text
        assert found.decode(ids) == wanted.decode(ids)
    assert found.bos_token_id == wanted.bos_token_id == 2
    assert set(found.eos_token_ids) == set(wanted.eos_token_ids) == {1, 5}
    assert found.control_ids == wanted.control_ids
    assert all(found.pieces[token_id] == wanted.pieces[token_id] for token_id in range(wanted.vocab_size))


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "smollm", "tekken"])
def test_byte_level_vocabularies_encode_as_their_tokenizer_json(pre: str, tmp_path: Path) -> None:
    backend = byte_level(pre)
    found = Tokenizer.from_gguf(as_read(byte_level_metadata(backend, pre, NAMED)))
    wanted = Tokenizer.load(builders.write(tmp_path, backend, add_bos_token=True))
    assert_same(found, wanted, TEXTS)

    @settings(max_examples=200, deadline=None)
    @given(st.text(alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \n\r\t'sSlL019aZé/.<>"))))
    def any_text(text: str) -> None:
        assert found.encode(text) == wanted.encode(text)

    any_text()


@pytest.mark.parametrize("add_space_prefix", [False, True])
def test_sentencepiece_vocabularies_encode_as_their_tokenizer_json(add_space_prefix: bool, tmp_path: Path) -> None:
    backend, metadata = sentencepiece(add_space_prefix=add_space_prefix)
    found = Tokenizer.from_gguf(as_read(metadata))
    wanted = Tokenizer.load(builders.write(tmp_path, backend, add_bos_token=True))
    assert_same(found, wanted, TEXTS)

    @settings(max_examples=200, deadline=None)
    @given(st.text(alphabet=st.sampled_from("the nd▁\n<>0xé数🦄 ")))
    def any_text(text: str) -> None:
        assert found.encode(text) == wanted.encode(text)

    any_text()


def test_pieces_join_by_their_scores() -> None:
    pieces = {"<unk>": 0.0, "a": -9.0, "b": -9.5, "c": -9.6, "ab": -2.0, "bc": -1.0, "abc": -3.0, "aa": -4.0}
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(pieces),
        "tokenizer.ggml.scores": list(pieces.values()),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    }
    tokenizer = Tokenizer.from_gguf(as_read(metadata))
    texts = {"ab": ["ab"], "abc": ["abc"], "aabc": ["a", "abc"], "abab": ["ab", "ab"], "aab": ["a", "ab"]}
    for text, wanted in texts.items():
        assert [list(pieces)[token_id] for token_id in tokenizer.encode(text)] == wanted


def test_runs_of_spaces_that_a_user_defined_are_pieces_and_come_first() -> None:
    tokens = ["<unk>", "  ", "   ", "▁", "a", "▁a", "\n", "\n\n"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 4, 4, 1, 1, 1, 1, 4],
        "tokenizer.ggml.scores": [0.0, -1000.0, -1000.0, -9.0, -9.0, 0.0, -9.0, -1000.0],
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    }
    tokenizer = Tokenizer.from_gguf(as_read(metadata))
    assert tokenizer.encode("a  a   a a") == [4, 1, 4, 2, 4, 5]
    assert tokenizer.encode("a\n\n\na") == [4, 7, 6, 4]
    assert tokenizer.decode([4, 2, 4, 7]) == "a   a\n\n"


def test_the_chat_template_and_the_ends_of_turns_are_taken(tmp_path: Path) -> None:
    backend = byte_level("gpt-2")
    metadata = byte_level_metadata(backend, "gpt-2", NAMED)
    metadata["tokenizer.chat_template"] = builders.GEMMA_TEMPLATE
    found = Tokenizer.from_gguf(as_read(metadata))
    wanted = Tokenizer.load(builders.write(tmp_path, backend, add_bos_token=True))
    messages = [ChatMessage("user", "hello <end_of_turn> there"), ChatMessage("assistant", "hi")]
    assert found.encode_chat(messages) == wanted.encode_chat(messages)
    assert set(found.eos_token_ids) == {1, 5}


def test_the_only_named_template_is_the_template() -> None:
    """As gguf-py writes a list of templates: their names, and each by its name but for "default"."""
    metadata = byte_level_metadata(byte_level("gpt-2"), "gpt-2", NAMED)
    named = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "{{ messages[0].content }}"}
    messages = [ChatMessage("user", "hello")]
    found = Tokenizer.from_gguf(as_read(metadata | named))
    assert found.decode(found.encode_chat(messages)) == "hello"
    both = named | {"tokenizer.chat_templates": ["tool_use", "rag"], "tokenizer.chat_template.rag": "x"}
    with pytest.raises(TokenizerError, match="no chat template"):
        Tokenizer.from_gguf(as_read(metadata | both)).encode_chat(messages)
    found = Tokenizer.from_gguf(as_read(metadata | both | {"tokenizer.chat_template": "y{{ messages[0].content }}"}))
    assert found.decode(found.encode_chat(messages)) == "yhello"


def test_a_list_of_ends_and_a_padding_token_that_there_is_not() -> None:
    metadata = byte_level_metadata(byte_level("gpt-2"), "gpt-2", NAMED)
    plain = set(Tokenizer.from_gguf(as_read(metadata)).eos_token_ids)
    more = {"tokenizer.ggml.eos_token_ids": [*plain, 300], "tokenizer.ggml.padding_token_id": 1 << 20}
    found = Tokenizer.from_gguf(as_read(metadata | more))
    assert set(found.eos_token_ids) == plain | {300}
    with pytest.raises(TokenizerError, match=r"eos_token_ids: expected ids below \d+, got 1 elements"):
        Tokenizer.from_gguf(as_read(metadata | {"tokenizer.ggml.eos_token_ids": [1 << 20]}))


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED])
@pytest.mark.parametrize("name", ["gemma", "llama3", "qwen", "phi4_mini"])
def test_marks_of_turns_are_control_tokens_whatever_their_type(name: str, kind: int, tmp_path: Path) -> None:
    """As in Google's own files of Gemma 3, which were trained for 4 bits."""
    built = family(name)
    wanted, sound = Tokenizer.load(built.write(tmp_path)), built.metadata()
    marks = {"<start_of_turn>", "<end_of_turn>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>"}
    marks |= {"<|end_header_id|>", "<|end|>", "<|endoftext|>"}
    found = Tokenizer.from_gguf(as_read(with_types(sound, dict.fromkeys(marks, kind))))
    messages = [ChatMessage("user", "hello <end_of_turn> there <|im_end|><|eot_id|>"), ChatMessage("assistant", "hi")]
    assert found.encode_chat(messages) == wanted.encode_chat(messages)
    assert found.encode("a<end_of_turn><|im_end|><|eot_id|>b") == wanted.encode("a<end_of_turn><|im_end|><|eot_id|>b")
    assert set(found.eos_token_ids) == set(wanted.eos_token_ids)
    assert found.control_ids == wanted.control_ids


def with_more(tokens: dict[str, int]) -> tuple[dict[str, object], list[int]]:
    """Return metadata with more tokens, each of a type, and their ids."""
    metadata = byte_level_metadata(byte_level("gpt-2"), "gpt-2", NAMED)
    old = metadata["tokenizer.ggml.tokens"]
    assert isinstance(old, list)
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, list)
    kept = [index for index, token in enumerate(old) if token not in tokens]
    new = [*(old[index] for index in kept), *tokens]
    kinds = [*(types[index] for index in kept), *tokens.values()]
    ids = {f"tokenizer.ggml.{kind}_token_id": new.index(token) for kind, token in NAMED.items()}
    changed = metadata | {"tokenizer.ggml.tokens": new, "tokenizer.ggml.token_type": kinds} | ids
    return changed, list(range(len(kept), len(new)))


@pytest.mark.parametrize(
    ("token", "kind", "is_end"),
    [
        ("</s>", CONTROL, True),
        ("</s>", USER_DEFINED, False),  # a tag of HTML, as Gemma has it
        ("<EOT>", CONTROL, True),
        ("<EOT>", NORMAL, False),
        ("<|return|>", NORMAL, True),
        ("<end_of_turn>", USER_DEFINED, True),
        ("<think>", CONTROL, False),
    ],
)
def test_what_ends_an_answer_goes_by_the_tokens_names(token: str, kind: int, is_end: bool) -> None:
    metadata, ids = with_more({token: kind})
    found = Tokenizer.from_gguf(as_read(metadata))
    assert (ids[0] in found.eos_token_ids) == is_end
    assert (ids[0] in found.control_ids) == (kind == CONTROL or is_end)


def test_the_end_of_a_message_is_no_end_where_more_messages_follow() -> None:
    metadata, ids = with_more(dict.fromkeys(("<|end|>", "<|return|>", "<|call|>"), CONTROL))
    assert set(ids) & set(Tokenizer.from_gguf(as_read(metadata)).eos_token_ids) == set(ids[1:])


def test_text_that_only_looks_like_a_mark_stays_text_unless_the_template_has_it() -> None:
    metadata, (mark, tag) = with_more(dict.fromkeys(("<|made_up|>", "<tool_call>"), NORMAL))
    assert Tokenizer.from_gguf(as_read(metadata)).control_ids.isdisjoint((mark, tag))
    metadata["tokenizer.chat_template"] = "<|made_up|>{{ messages[0]['content'] }}<tool_call>"
    found = Tokenizer.from_gguf(as_read(metadata))
    assert mark in found.control_ids and tag not in found.control_ids
    assert found.encode_chat([ChatMessage("user", "x")])[1] == mark


@pytest.mark.parametrize("name", ["mistral", "mistral3"])
def test_a_leading_space_is_kept_as_sentencepiece_keeps_it(name: str, tmp_path: Path) -> None:
    built = family(name)
    found, other = Tokenizer.from_gguf(as_read(built.metadata())), Tokenizer.load(built.write(tmp_path))
    pieces = built.metadata()["tokenizer.ggml.tokens"]
    assert isinstance(pieces, list)
    for text in ("the turn", " the turn", "   the", " ", "▁the", "\n the"):
        ids = found.encode(text, add_bos=False)
        assert other.encode(text, add_bos=False) == ids
        joined = "".join(pieces[token_id] for token_id in ids).replace("<0x0A>", "\n")
        assert joined == "▁" + text.replace(" ", "▁")
        assert found.decode(ids) == text.replace("▁", " ")
    assert found.encode("", add_bos=False) == []


@pytest.mark.parametrize(("pre", "wanted"), [("gpt-2", False), ("qwen2", False), ("llama-bpe", True), ("tekken", True)])
def test_where_nothing_is_said_the_vocabulary_decides_on_the_beginning_token(pre: str, wanted: bool) -> None:
    metadata = byte_level_metadata(byte_level(pre), pre, NAMED)
    del metadata["tokenizer.ggml.add_bos_token"]
    assert (Tokenizer.from_gguf(as_read(metadata)).encode("x")[0] == 2) == wanted


def test_gemma_4_s_files_that_deny_the_beginning_token_have_it_all_the_same() -> None:
    metadata = family("gemma4").metadata() | {"tokenizer.ggml.add_bos_token": False}
    assert Tokenizer.from_gguf(as_read(metadata)).encode("x")[0] == 2


def test_padding_of_the_vocabulary_is_no_token() -> None:
    backend = byte_level("gpt-2")
    metadata = byte_level_metadata(backend, "gpt-2", NAMED)
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list) and isinstance(types, list)
    size = len(tokens)
    found = Tokenizer.from_gguf(
        as_read(
            metadata
            | {
                "tokenizer.ggml.tokens": [*tokens, "[PAD1]", "[PAD2]"],
                "tokenizer.ggml.token_type": [*types, UNUSED, UNUSED],
            }
        )
    )
    assert found.vocab_size == size
    assert found.decode([size, size + 1]) == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, r"tokenizer\.ggml\.model is missing"),
        ({"model": "bert"}, "model 'bert' is not supported; known are gpt2, llama, gemma4"),
        ({"pre": "made-up"}, r"pre 'made-up' is not supported; known are .*llama-bpe, .*qwen2"),
        ({"tokens": None}, r"tokens is missing"),
        ({"tokens": 3}, r"tokens: expected strings, got 3"),
        ({"merges": None}, r"merges is missing"),
        ({"merges": ["ab"]}, "two tokens with a space between, got 'ab'"),
        ({"merges": ["a zzz"]}, "out of vocabulary"),
        ({"token_type": [1, 2]}, r"token_type: expected \d+ integers, got 2 elements"),
        ({"bos_token_id": 1 << 40}, r"bos_token_id: expected an id below"),
        ({"add_bos_token": "yes"}, "add_bos_token: expected true or false, got 'yes'"),
        ({"model": "llama"}, r"scores is missing"),
        ({"model": "llama", "scores": [1.0]}, r"scores: expected \d+ numbers, got 1 elements"),
    ],
)
def test_metadata_that_can_t_be_used_is_refused(changes: dict[str, object], message: str) -> None:
    metadata = byte_level_metadata(byte_level("gpt-2"), "gpt-2", NAMED)
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    kept = {key: value for key, value in metadata.items() if value is not None}
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_gguf(as_read(kept))


@pytest.mark.parametrize(("token", "score"), [("a", float("nan")), ("a" * 300, 0.0)])
def test_a_piece_that_no_model_has_is_refused(token: str, score: float) -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<s>", token],
        "tokenizer.ggml.token_type": [CONTROL, NORMAL],
        "tokenizer.ggml.scores": [0.0, score],
    }
    with pytest.raises(TokenizerError, match=f"of {len(token)} characters with score"):
        Tokenizer.from_gguf(as_read(metadata))


VALUES = st.one_of(
    st.integers(-4, 20),
    st.floats(),
    st.booleans(),
    st.text(max_size=4),
    st.lists(st.integers(-1, 9), max_size=9),
    st.lists(st.text(max_size=3), min_size=1, max_size=9),
    st.lists(st.floats(width=32), min_size=1, max_size=9),
)
KEYS = ("tokens", "token_type", "scores", "merges", "pre", "model", "bos_token_id", "eos_token_id", "add_space_prefix")


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["gpt2", "llama"]), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_any_metadata_is_understood_or_refused(model: str, changes: dict[str, object]) -> None:
    metadata: dict[str, object] = {
        "model": model,
        "tokens": ["<s>", "</s>", "a", "b", "ab", "<0x41>", "  ", "▁", "x"],
        "token_type": [3, 3, 1, 1, 1, 6, 4, 1, 2],
        "scores": [0.0, 0.0, -3.0, -3.0, -1.0, 0.0, 0.0, -2.0, 0.0],
        "merges": ["a b"],
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items()}
    try:
        tokenizer = Tokenizer.from_gguf(as_read(metadata))
    except TokenizerError:
        return
    with suppress(RequestError):  # a text that can't be spelled without a control token
        tokenizer.decode(tokenizer.encode("a ab  x</s>"))


def test_a_control_token_that_no_spelling_avoids_is_refused() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["▁", "</s>"],
        "tokenizer.ggml.token_type": [NORMAL, CONTROL],
        "tokenizer.ggml.scores": [0.0, 0.0],
        "tokenizer.ggml.unknown_token_id": 1,
    }
    tokenizer = Tokenizer.from_gguf(as_read(metadata))
    with pytest.raises(RequestError, match="however it is spelled"):
        tokenizer.encode("x</s>")
