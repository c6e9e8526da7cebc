"""A GGUF file and the directory that it comes from give the same tokens for the same text, for every model family."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unicorn_async.tokenizer import ChatMessage, Tokenizer

from .families import FAMILIES, Family, family
from .metadata import as_read

if TYPE_CHECKING:
    from collections.abc import Sequence

HARD = [
    "",
    " ",
    "   ",
    "\n",
    " \n \n\n\n\n\n",
    "\t\ttabs\t",
    "\r\n\r\n",
    "  two in front, and two behind  ",
    "a  b   c    d     e",
    "It's THEY'RE we'Ll 'tis 's",
    "0 12 123 1234 1234567 3.14 -1e-9 ½ ٣ Ⅷ 万",
    "naïve café / nai\u0308ve cafe\u0301 ÅÅ ﬁ",  # composed, decomposed, and the sign that becomes a letter
    "数学は楽しい。你好，世界！ 한국어 กำลัง",
    "🦄👩‍👩‍👧🏳️‍🌈 👍🏽 \U0001f1e9\U0001f1ea",
    "\u200b\u200d\ufeff\u00a0\u3000\u2028",
    "\x00\x01\x1b[31m\x7f",
    "▁ ▁▁ a▁b ▁a ▁\n▁",
    "<0x41> <0xFF> <0x4> <0x0A>",
    "CamelCaseWord HTTPServer snake_case a/b//c\n/d x=1; y<=2 && z!=3\n\n\n    return\n",
    "<td>x</td> <think>why</think> <unused0> <tool_call>",
    "\ue000\uf8ff\ufffd\U0010ffff",
    "a" * 300 + " " + "é" * 50,
    *(f"x{sign * count}y" for sign in " \n\t" for count in (5, 17, 31, 32, 63, 100)),
]
LETTERS = st.one_of(
    st.characters(codec="utf-8"),
    st.sampled_from(" \n\r\t'sSlL019aeinZé/.<>|[]_▁"),
)


@pytest.fixture(params=FAMILIES)
def built(request: pytest.FixtureRequest) -> Family:
    return family(request.param)


@pytest.fixture
def pair(built: Family, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizer of the GGUF metadata, and that of the directory."""
    directory = built.write(tmp_path_factory.mktemp("hf"))
    return Tokenizer.from_gguf(as_read(built.metadata())), Tokenizer.load(directory)


def fragments(built: Family) -> list[str]:
    """Whole control tokens and added ones, and pieces of them."""
    tokens = [*built.control, *built.plain]
    return [*tokens, *(token[:-1] for token in tokens), *(token[1:] for token in tokens), *(f" {t} " for t in tokens)]


def texts(built: Family) -> st.SearchStrategy[str]:
    """Any text, with control tokens, added ones and words in it."""
    words = ["the", " the", "The user", " answers", "  ", "\n\n", "1234", "'s", "日本", "🦄", "ß", *fragments(built)]
    return st.lists(st.one_of(st.text(LETTERS, max_size=12), st.sampled_from(words)), max_size=8).map("".join)


def test_what_describes_the_vocabulary_is_the_same(pair: tuple[Tokenizer, Tokenizer], built: Family) -> None:
    found, wanted = pair
    assert found.vocab_size == wanted.vocab_size
    assert found.bos_token_id == wanted.bos_token_id
    assert set(found.eos_token_ids) == set(wanted.eos_token_ids) == set(built.ends)
    assert found.control_ids == wanted.control_ids
    assert [found.pieces[i] for i in range(wanted.vocab_size)] == [wanted.pieces[i] for i in range(wanted.vocab_size)]


def test_hard_texts_have_the_same_tokens(pair: tuple[Tokenizer, Tokenizer], built: Family) -> None:
    found, wanted = pair
    for text in [*HARD, *fragments(built), *(f"x{a}{b}y" for a in fragments(built)[:9] for b in built.control)]:
        for add_bos in (True, False):
            ids = wanted.encode(text, add_bos=add_bos)
            assert found.encode(text, add_bos=add_bos) == ids, text
        assert found.decode(ids) == wanted.decode(ids)
        assert found.control_ids.isdisjoint(found.encode(text, add_bos=False)), text


def test_any_text_has_the_same_tokens(pair: tuple[Tokenizer, Tokenizer], built: Family) -> None:
    found, wanted = pair

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(texts(built))
    def check(text: str) -> None:
        ids = wanted.encode(text)
        assert found.encode(text) == ids
        assert found.decode(ids) == wanted.decode(ids)

    check()


def test_any_conversation_has_the_same_tokens(pair: tuple[Tokenizer, Tokenizer], built: Family) -> None:
    found, wanted = pair

    def check_turns(contents: Sequence[str], prompt: bool) -> None:
        turns = [ChatMessage(("user", "assistant")[i % 2], text) for i, text in enumerate(contents)]
        ids = wanted.encode_chat(turns, add_generation_prompt=prompt)
        assert found.encode_chat(turns, add_generation_prompt=prompt) == ids

    for text in [*HARD, *fragments(built)]:
        check_turns([text], True)
        check_turns(["hello", text, "and then?"], False)

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(texts(built), min_size=1, max_size=4), st.booleans())
    def check(contents: list[str], prompt: bool) -> None:
        check_turns(contents, prompt)

    check()
