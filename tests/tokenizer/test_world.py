"""RWKV's world vocabulary: of a file and of GGUF metadata, beside a plain search for the longest token."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from tests.tokenizer.gguf.metadata import CONTROL, NORMAL, UNUSED, as_read
from unicorn_async.errors import RequestError, TokenizerError
from unicorn_async.tokenizer import ChatMessage, Tokenizer
from unicorn_async.tokenizer.world_vocabulary import END, FILE_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WORDS = (" the", "the", " th", "User", "Assistant", "::", "ß", "'\"", "\\\\", "é ", "世界", "a b", "ab")
TEXTS = (*WORDS, "\n\n", "\n\n\n", "\t\t", "<|im_end|>")  # the last is a mark elsewhere
PARTS = (b"\xe4\xb8", b"\xf0\x9f\xa6", b"\x96\xe7")  # of characters
TOKENS = [*(bytes((byte,)) for byte in range(256)), *(text.encode() for text in TEXTS), *PARTS]
SAMPLES = ["", "a<|im_end|>", "the  the thth\n\n\n\n\n", "User: ß世界\\é 🦄'\"a b ab\t", f"x{END}y", "\x00\x7f\u2028"]


def lines_of(tokens: Sequence[bytes]) -> list[str]:
    """A line for each token from id 1 on, as the family's file has it: text where the bytes are text."""
    lines = []
    for token_id, token in enumerate(tokens, 1):
        try:
            literal = repr(token.decode())
        except UnicodeDecodeError:
            literal = repr(token)
        lines.append(f"{token_id} {literal} {len(token)}")
    return lines


def written(directory: Path, lines: Sequence[str], config: dict[str, object] | None = None) -> Path:
    (directory / FILE_NAME).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config or {}), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(written(tmp_path_factory.mktemp("world"), lines_of(TOKENS)))


@pytest.fixture(scope="module")
def of_gguf() -> Tokenizer:
    escaped = [repr(token)[2:-1] for token in TOKENS]
    types = [CONTROL, *[NORMAL] * len(TOKENS), UNUSED]
    metadata = {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": ["<s>", *escaped, "[PAD0]"],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": TOKENS.index(b"\n\n") + 1,
        "tokenizer.chat_template": "rwkv-world",
    }
    return Tokenizer.from_gguf(as_read(metadata))


def longest_each_time(data: bytes) -> list[int]:
    ids: list[int] = []
    while data:
        token = max((token for token in TOKENS if data.startswith(token)), key=len)
        ids.append(TOKENS.index(token) + 1)
        data = data[len(token) :]
    return ids


@pytest.mark.parametrize("kind", ["world", "of_gguf"])
def test_a_text_takes_the_longest_token_each_time(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    draw = random.Random(5)
    mixed = ["".join(draw.choices((*TEXTS, "t", "h", "e", " ", "\n", "🦄", "時"), k=60)) for _ in range(20)]
    for text in (*SAMPLES, *mixed):
        ids = tokenizer.encode(text)
        assert ids == longest_each_time(text.encode())
        assert tokenizer.decode(ids) == text
        assert len(ids) >= tokenizer.encoder.least_tokens(text)


@pytest.mark.parametrize("kind", ["world", "of_gguf"])
def test_turns_are_those_that_the_models_were_trained_on(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    turns = [("system", "the the"), ("user", f" a {END} "), ("assistant", "ab"), ("user", "ß")]
    ids = tokenizer.encode_chat([ChatMessage(role, content) for role, content in turns])
    assert 0 not in ids
    assert tokenizer.decode(ids) == f"System: the the\n\nUser: a {END}\n\nAssistant: ab\n\nUser: ß\n\nAssistant:"
    assert set(tokenizer.eos_token_ids) == {0, TOKENS.index(b"\n\n") + 1}
    with pytest.raises(RequestError, match="no role tool"):
        tokenizer.encode_chat([ChatMessage("tool", "x")])


def test_the_end_of_a_text_is_a_token_where_a_template_has_it_alone(tmp_path: Path) -> None:
    config = {"chat_template": END + "{{ messages[0]['content'] }}", "eos_token": "\n\n", "add_bos_token": True}
    tokenizer = Tokenizer.load(written(tmp_path, lines_of(TOKENS), config))
    assert tokenizer.encode_chat([ChatMessage("user", f"{END}\n\n")]) == [0, *longest_each_time(f"{END}\n\n".encode())]
    assert tokenizer.encode(f"a{END}b", with_control=True) == [0, ord("a") + 1, 0, ord("b") + 1]
    assert tokenizer.encoder.least_tokens(END) == 1
    assert set(tokenizer.eos_token_ids) == {0, TOKENS.index(b"\n\n") + 1}
    assert tokenizer.decode([0, ord("a") + 1, len(TOKENS) + 1]) == "a"
    table = tokenizer.piece_table()
    assert [table[token_id] for token_id in range(1, len(table))] == TOKENS
    with pytest.raises(RequestError, match="not valid Unicode"):
        tokenizer.encode("\ud800")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("300 'x y", "line 277: expected an id, a literal and a length"),
        ("300 __import__('os') 2", "expected an id, a literal and a length"),
        ("300 'x' + 'y' 2", "is no literal of Python|expected 2 bytes"),
        ("300 'zz' 3", "expected 3 bytes, 1 to 1024"),
        ("300 'x', {[]}, 'y' 2", "is no literal of Python"),
        ("300 '' 0", "expected 0 bytes, 1 to 1024"),
        ("0 'zz' 2", "expected an id from 1"),
        ("2000000 'zz' 2", "expected an id from 1"),
        ("7 'zz' 2", "token 7 appears twice"),
        ("300 ' the' 4", "tokens 257 and 300 are both b' the'"),
        (r"300 '\udc80' 3", "is no literal of Python"),
    ],
)
def test_a_damaged_file_is_refused_by_its_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.load(written(tmp_path, [*lines_of(TOKENS), line]))


def test_a_vocabulary_that_lacks_a_byte_or_has_other_tokens_beside_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no token is the byte 0x00 alone"):
        Tokenizer.load(written(tmp_path, lines_of(TOKENS)[1:]))
    with pytest.raises(TokenizerError, match="tokens <laughter> beside a world vocabulary are not supported"):
        Tokenizer.load(written(tmp_path, lines_of(TOKENS), {"additional_special_tokens": ["<laughter>", "\n\n"]}))


@pytest.mark.parametrize("is_gguf", [False, True])
def test_a_vocabulary_with_too_many_lengths_to_try_at_a_place_is_refused(tmp_path: Path, is_gguf: bool) -> None:
    kept = [*TOKENS, *(b"aa" + b"b" * (length - 2) for length in range(2, 91))]
    one_more = [*kept, b"aa" + b"c" * 89]

    def load(tokens: list[bytes]) -> Tokenizer:
        if not is_gguf:
            return Tokenizer.load(written(tmp_path, lines_of(tokens)))
        metadata = {
            "tokenizer.ggml.model": "rwkv",
            "tokenizer.ggml.tokens": ["<s>", *(repr(token)[2:-1] for token in tokens)],
            "tokenizer.ggml.token_type": [CONTROL, *[NORMAL] * len(tokens)],
        }
        return Tokenizer.from_gguf(as_read(metadata))

    assert load(kept).encode("aa" + "b" * 88) == [len(kept)]
    with pytest.raises(TokenizerError, match=r"begin with b'aa' have 90 lengths of 4185 bytes in all, .* at most 4096"):
        load(one_more)
