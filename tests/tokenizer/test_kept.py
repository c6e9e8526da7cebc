"""A tokenizer that was kept gives what the whole one gives, and is made anew when it can't be what its source says."""

from __future__ import annotations

import json
import os
import random
import threading
from typing import TYPE_CHECKING

import pytest
import tokenizers
from tokenizers import AddedToken, normalizers, pre_tokenizers

from tests.tokenizer.gguf.metadata import as_read, byte_level_metadata
from unicorn_async.resources import demo_model_dir
from unicorn_async.tokenizer import Tokenizer
from unicorn_async.tokenizer.excerpt import MAX_TEXT_CHARS, Excerpts
from unicorn_async.tokenizer.kept import kept_form, read_kept
from unicorn_async.tokenizer.kept_folder import KeptFolder
from unicorn_async.tokenizer.pieces import PieceTable

from . import builders
from .kept_forms import form_of, kept_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LETTERS = (
    [chr(code) for code in range(32, 127)]
    + list("äßéñ漢字かな한\n\t\u200b\u0301\u00a0🦄▁Ġ\x00")
    + ["\r\n", "  ", "   "]
)
WORDS = "the quick brown fox jumps over the lazy dog, then turns 3 times; the end. def f(x): return {'then': x}\n\n"


def odd_added_tokens() -> tokenizers.Tokenizer:
    """With added tokens that are found in normalised text, that take spaces along, and that end where others begin."""
    made = builders.sentencepiece_prefixed()
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.add_tokens([AddedToken("é the", normalized=True), AddedToken("<a", normalized=False), AddedToken("<ab>")])
    made.add_special_tokens([AddedToken("<x>", lstrip=True, rstrip=True, normalized=False, special=True)])
    return made


def first_space() -> tokenizers.Tokenizer:
    made = builders.sentencepiece_bpe()
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    return made


def whole_words() -> tokenizers.Tokenizer:
    """Takes words that are tokens without merging, also those that no merges make."""
    made = builders.byte_level()
    state = made.to_str().replace('"ignore_merges":false', '"ignore_merges":true')
    assert '"ignore_merges":true' in state
    return tokenizers.Tokenizer.from_str(state)


MAKERS: tuple[Callable[[], tokenizers.Tokenizer], ...] = (
    builders.sentencepiece_bpe,
    builders.sentencepiece_prefixed,
    builders.byte_level,
    odd_added_tokens,
    first_space,
    whole_words,
)


def random_text(rng: random.Random, added: list[str]) -> str:
    if rng.random() < 0.4:
        return "".join(rng.choice(LETTERS) for _ in range(rng.randint(0, 40)))
    parts = []
    for _ in range(rng.randint(1, 8)):
        start = rng.randrange(len(WORDS))
        parts.append(rng.choice([rng.choice(added), rng.choice(LETTERS), " ", WORDS[start : start + 20]]))
    return "".join(parts)


def check_excerpts(tokenizer: Tokenizer, count: int) -> None:
    kept, rng = kept_of(tokenizer), random.Random(5)
    excerpts = Excerpts(kept)
    added = [str(token["content"]) for token in kept.added] or ["none"]
    for text in ("", " ", *(random_text(rng, added) for _ in range(count))):
        for with_control in (False, True):
            expected = tokenizer.encoder.encode(text, with_control=with_control)
            assert excerpts.encode(text, with_control=with_control) == expected, (text, with_control)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_an_excerpt_gives_the_ids_of_the_whole(make: Callable[[], tokenizers.Tokenizer], tmp_path: Path) -> None:
    check_excerpts(Tokenizer.load(builders.write(tmp_path, make())), 250)


def test_the_demo_models_tokenizer_and_one_of_a_gguf_file_are_kept_likewise() -> None:
    check_excerpts(Tokenizer.load(demo_model_dir()), 150)
    metadata = as_read(byte_level_metadata(builders.byte_level(), "llama-bpe", {"bos": "<bos>"}))
    check_excerpts(Tokenizer.from_gguf(metadata), 150)


def test_facts_and_bytes_of_tokens_are_kept(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(builders.write(tmp_path, builders.sentencepiece_prefixed()))
    kept = kept_of(tokenizer)
    assert kept.facts == tokenizer.facts
    assert kept.strip == tokenizer.pieces.strip
    ids = [*range(tokenizer.facts.num_ids + 2), -1]
    assert [kept.pieces[token_id] for token_id in ids] == [tokenizer.pieces[token_id] for token_id in ids]


@pytest.mark.parametrize(
    "change",
    [
        ('"dropout":null', '"dropout":0.1'),
        ('"end_of_word_suffix":null', '"end_of_word_suffix":"</w>"'),
        ('"continuing_subword_prefix":null', '"continuing_subword_prefix":"##"'),
    ],
)
def test_what_an_excerpt_could_not_stand_for_is_not_kept(change: tuple[str, str], tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(builders.write(tmp_path, builders.byte_level()))
    backend = builders.backend(tokenizer)

    class Changed:
        def to_str(self) -> str:
            text: str = backend.to_str()
            assert change[0] in text
            return text.replace(*change)

    assert kept_form(Changed(), tokenizer.facts, PieceTable(), (b" ", 0)) is None  # type: ignore[arg-type]


def test_other_models_than_pairs_of_bytes_are_not_kept(tmp_path: Path) -> None:
    assert form_of(Tokenizer.load(builders.write(tmp_path, builders.unigram()))) is None


def pairs(vocabulary: dict[str, int], merges: list[tuple[str, str]], directory: Path, **keys: object) -> Tokenizer:
    """Make a tokenizer without rules of its own for words, as a file may have it."""
    state = json.loads(builders.sentencepiece_bpe().to_str())
    plain = {"unk_token": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": merges}
    state["model"] |= plain | keys
    state |= {"normalizer": None, "pre_tokenizer": None, "added_tokens": [], "post_processor": None}
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(state))
    return Tokenizer.load(directory)


def test_characters_join_across_one_that_nothing_stands_for(tmp_path: Path) -> None:
    tokenizer = pairs({"a": 0, "c": 1, "ac": 2}, [("a", "c")], tmp_path)
    excerpts = Excerpts(kept_of(tokenizer))
    assert tokenizer.encode("abc") == [2]  # the library leaves b out, and joins what is left
    assert excerpts.encode("abc", with_control=False) == [2]
    assert excerpts.encode("bab", with_control=False) == [0]


BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}
ALIKE = ("\u4ff4" * 10, "\u5003\u4fdc\u4ffd\u5025\u4ff1\u5012\u4ffd\u4fef\u4fc5\u4fc7")


@pytest.mark.parametrize(
    ("vocabulary", "merges", "keys"),
    [
        ({**BYTES, "<0x62><0x63>": 256}, [("<0x62>", "<0x63>")], {"byte_fallback": True}),
        ({"<unk>": 0, "a": 1, "<unk>a": 2}, [("<unk>", "a")], {"unk_token": "<unk>"}),
        ({"a": 0, "b": 0, "c": 1}, [], {}),
        ({text: number for number, text in enumerate(ALIKE)}, [], {}),
    ],
    ids=["bytes that join", "unknowns that join", "one id for two", "one hash for two"],
)
def test_vocabularies_of_which_a_part_is_not_like_the_whole_are_not_kept(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], keys: dict[str, object], tmp_path: Path
) -> None:
    assert form_of(pairs(vocabulary, merges, tmp_path, **keys)) is None


def test_added_tokens_that_one_text_is_are_not_kept(tmp_path: Path) -> None:
    state = json.loads(builders.sentencepiece_bpe().to_str())
    state["normalizer"] = {"type": "Lowercase"}
    number = max(state["model"]["vocab"].values()) + 1
    common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    state["added_tokens"] = [{"id": number + i, "content": text, **common} for i, text in enumerate(["Word", "word"])]
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    assert form_of(Tokenizer.load(tmp_path)) is None
    del state["added_tokens"][1]
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    assert form_of(Tokenizer.load(tmp_path)) is not None


def test_half_a_character_is_refused_whatever_rules_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        Excerpts(kept_of(pairs({"a": 0}, [], tmp_path))).encode("\ud800", with_control=False)


def test_a_long_text_is_left_to_the_whole() -> None:
    excerpts = Excerpts(kept_of(Tokenizer.load(demo_model_dir())))
    assert excerpts.encode("a" * (MAX_TEXT_CHARS + 1), with_control=False) is None


def test_whatever_is_changed_in_a_file_is_seen() -> None:
    form = form_of(Tokenizer.load(demo_model_dir()))
    assert form is not None
    rng = random.Random(7)
    for _ in range(200):
        damaged = bytearray(form)
        damaged[rng.randrange(len(form))] ^= 1 << rng.randrange(8)
        assert read_kept(memoryview(bytes(damaged))) is None
    for length in (0, 1, 19, 20, 59, 60, 61, len(form) - 1):
        assert read_kept(memoryview(form[:length])) is None
    assert read_kept(memoryview(form + b"\0")) is None


def test_a_damaged_file_is_removed_and_a_sound_one_read(tmp_path: Path) -> None:
    folder, form = KeptFolder(tmp_path / "kept"), form_of(Tokenizer.load(demo_model_dir()))
    file = folder.file_for(demo_model_dir())
    assert form is not None and file is not None
    assert folder.read(file) is None
    assert folder.write(file, form)
    found = folder.read(file)
    assert found is not None and found.facts.vocab_size == 2048
    file.write_bytes(form[:-1])
    assert folder.read(file) is None
    assert not file.exists()
    file.write_bytes(b"")
    assert folder.read(file) is None


def test_a_source_that_was_changed_has_another_file(tmp_path: Path) -> None:
    folder, model = KeptFolder(tmp_path / "kept"), builders.write(tmp_path / "model", builders.byte_level())
    source = model / "tokenizer.json"
    names = [folder.file_for(model)]
    before = source.stat()
    source.write_bytes(source.read_bytes()[::-1])
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))  # of the same size and time, but written to later
    names.append(folder.file_for(model))
    (model / "chat_template.jinja").write_text("{{ messages }}")
    names.append(folder.file_for(model))
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    names.append(folder.file_for(gguf))
    assert len(set(names)) == 4
    assert folder.file_for(gguf) == names[-1]


def test_a_folder_that_can_not_be_used_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = KeptFolder(tmp_path / "file" / "kept")
    file = folder.file_for(demo_model_dir())
    assert file is not None
    assert folder.read(file) is None
    assert not folder.write(file, b"x")
    assert folder.files() == []
    assert folder.prune() == 0


def test_files_unused_for_longest_go_first_and_so_does_what_writers_left(tmp_path: Path) -> None:
    folder = KeptFolder(tmp_path)
    for number in range(5):
        path = tmp_path / (f"{number}.part" if number == 1 else f"{number}.tokenizer")
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))
    (tmp_path / "other").write_text("not ours")
    assert folder.prune(most=3) == 2
    assert [path.name for path, _ in folder.files()] == ["4.tokenizer", "3.tokenizer", "2.tokenizer"]
    assert folder.prune(nbytes=250) == 1
    assert folder.prune(most=0) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_two_that_write_at_once_leave_a_sound_file(tmp_path: Path) -> None:
    folder, form = KeptFolder(tmp_path), form_of(Tokenizer.load(demo_model_dir()))
    file = folder.file_for(demo_model_dir())
    assert form is not None and file is not None
    threads = [threading.Thread(target=folder.write, args=(file, form)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folder.read(file) is not None
    assert [path for path, _ in folder.files()] == [file]
