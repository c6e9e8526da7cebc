"""Incremental decoding."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicorn_async.tokenizer import StreamDecoder, Tokenizer

from . import builders

NAMES = ("sentencepiece_bpe", "sentencepiece_prefixed", "byte_level", "unigram")


@pytest.fixture(scope="module")
def all_tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    directory = tmp_path_factory.mktemp("tokenizers")
    return {name: Tokenizer.load(builders.write(directory / name, getattr(builders, name)())) for name in NAMES}


@given(st.text())
@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("name", NAMES)
def test_the_pieces_of_a_text_join_to_it(all_tokenizers: dict[str, Tokenizer], name: str, text: str) -> None:
    tokenizer = all_tokenizers[name]
    ids = tokenizer.encode(text)
    decoder = StreamDecoder(tokenizer)
    pieces = [decoder.add(token_id) for token_id in ids]
    joined = "".join(pieces) + decoder.finish()
    if name == "unigram":  # Metaspace has no spelling for its own character or for the first space
        assert joined.replace("▁", " ").strip() == text.replace("▁", " ").strip()
    else:
        assert joined == tokenizer.decode(ids)
    if "▁" not in text and name != "unigram":
        assert joined == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(min_value=0, max_value=270)))
@settings(deadline=None, max_examples=100)
@pytest.mark.parametrize("name", NAMES)
def test_any_ids_stream_to_what_decode_gives(all_tokenizers: dict[str, Tokenizer], name: str, ids: list[int]) -> None:
    tokenizer = all_tokenizers[name]
    for skip_special in (True, False):
        decoder = StreamDecoder(tokenizer, skip_special=skip_special)
        joined = "".join([decoder.add(token_id) for token_id in ids]) + decoder.finish()
        assert joined == tokenizer.decode(ids, skip_special=skip_special)


def test_a_character_comes_with_its_last_byte(all_tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = all_tokenizers["sentencepiece_bpe"]
    ids = [builders.backend(tokenizer).token_to_id(f"<0x{byte:02X}>") for byte in "🦄".encode()]
    decoder = StreamDecoder(tokenizer)
    assert [decoder.add(token_id) for token_id in ids] == ["", "", "", "🦄"]
    assert [decoder.add(token_id) for token_id in ids[:2]] == ["", ""]
    assert decoder.finish() == "\ufffd"
    assert decoder.add(tokenizer.encode("x", add_bos=False)[0]) == "x"


def test_only_the_first_space_is_dropped(all_tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = all_tokenizers["sentencepiece_prefixed"]
    space = builders.backend(tokenizer).token_to_id("▁")
    the = builders.backend(tokenizer).token_to_id("▁the")
    decoder = StreamDecoder(tokenizer)
    assert [decoder.add(token_id) for token_id in (2, space, the, the)] == ["", "", " the", " the"]
