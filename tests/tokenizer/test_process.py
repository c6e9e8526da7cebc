"""A tokenizer in a process of its own does what the same one does here."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from tests.tokenizer.gguf.metadata import as_read, byte_level_metadata
from unicorn_async.errors import RequestError, TokenizerError, TokenizerLostError
from unicorn_async.tokenizer import LONG_CHARS, ChatMessage, StreamDecoder, Tokenizer
from unicorn_async.tokenizer import outage as outage_module
from unicorn_async.tokenizer import process as process_module
from unicorn_async.tokenizer.process import TokenizerProcess

from . import builders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXTS = ("the quick brown fox", "", "<start_of_turn>user\n", "🦄 naïve 你好 \x00", "the " * 3000)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builders.write(tmp_path_factory.mktemp("tokenizer"), builders.sentencepiece_prefixed())


@pytest.fixture(scope="module")
def process(directory: Path) -> Iterator[TokenizerProcess]:
    started = TokenizerProcess(directory)
    yield started
    started.close()


@pytest.fixture(scope="module")
def remote(process: TokenizerProcess) -> Tokenizer:
    return process.tokenizer()


@pytest.fixture(scope="module")
def local(directory: Path) -> Tokenizer:
    return Tokenizer.load(directory)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_have_the_same_ids(remote: Tokenizer, local: Tokenizer, text: str) -> None:
    assert remote.encode(text) == local.encode(text)
    assert remote.decode(remote.encode(text)) == text
    conversation = [ChatMessage("user", text), ChatMessage("assistant", "fine"), ChatMessage("user", "<eos>")]
    assert remote.encode_chat(conversation) == local.encode_chat(conversation)


def test_it_knows_the_same_of_the_vocabulary(remote: Tokenizer, local: Tokenizer) -> None:
    assert remote.facts == local.facts
    assert remote.control_ids == local.control_ids


def test_pieces_are_the_same_before_and_after_the_table_of_all_has_come(directory: Path, local: Tokenizer) -> None:
    process = TokenizerProcess(directory)
    remote = process.tokenizer()
    ids = [*range(local.vocab_size + 2), -1]
    for _ in range(2):
        assert [remote.pieces[token_id] for token_id in ids] == [local.pieces[token_id] for token_id in ids]
        assert StreamDecoder(remote).add(ids[-3]) == StreamDecoder(local).add(ids[-3])
    process.close()
    assert remote.pieces[5] == local.pieces[5]


def test_the_table_of_all_pieces_may_be_asked_for_at_any_time(directory: Path, local: Tokenizer) -> None:
    expected = local.piece_table()
    assert len(expected) == local.facts.num_ids
    process = TokenizerProcess(directory)
    try:
        remote = process.tokenizer()
        for _ in range(2):
            table = remote.piece_table()
            assert (table.data, table.ends) == (expected.data, expected.ends)
        assert remote.pieces[5] == local.pieces[5]
    finally:
        process.close()


def test_the_vocabulary_of_a_gguf_file_goes_there_too() -> None:
    metadata = as_read(byte_level_metadata(builders.byte_level(), "llama-bpe", {"bos": "<bos>"}))
    process = TokenizerProcess(metadata)
    text = "the quick brown 🦄"
    assert process.tokenizer().encode(text) == Tokenizer.from_gguf(metadata).encode(text)
    process.close()


def test_what_is_wrong_with_a_text_is_said_and_the_next_is_encoded(remote: Tokenizer, local: Tokenizer) -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        remote.encode("\ud800")
    assert remote.encode("the") == local.encode("the")


def test_what_is_wrong_with_the_files_is_said(tmp_path: Path) -> None:
    process = TokenizerProcess(tmp_path)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        process.tokenizer()
    process.close()


def test_closing_ends_who_waits(directory: Path) -> None:
    process = TokenizerProcess(directory)
    os.kill(process.pid, signal.SIGSTOP)  # so that it never answers
    errors: list[Exception] = []

    def wait() -> None:
        try:
            process.tokenizer()
        except TokenizerError as exc:
            errors.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    process.close()
    thread.join(120)
    assert [str(error) for error in errors] == ["the tokenizer's process has ended"]
    process.close()


def test_a_process_that_dies_is_started_again_and_the_request_answered(
    directory: Path, local: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    process = TokenizerProcess(directory)
    tokenizer = process.tokenizer()
    first = process.pid
    os.kill(first, signal.SIGKILL)
    assert tokenizer.encode("the") == local.encode("the")
    assert process.pid != first
    assert "has ended (signal 9)" in caplog.text
    process.close()


def test_a_process_that_can_not_be_started_again_is_the_server_s_fault_and_is_tried_again(
    directory: Path, local: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = TokenizerProcess(directory)
    tokenizer = process.tokenizer()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", _no_memory)
        os.kill(process.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(TokenizerLostError, match="can't be started: Cannot allocate memory"):
                tokenizer.encode("the")
    assert tokenizer.encode("the") == local.encode("the")
    process.close()
    with pytest.raises(TokenizerLostError, match="has ended"):
        tokenizer.encode("the")


def _no_memory(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_many_threads_may_ask_at_once(remote: Tokenizer, local: Tokenizer) -> None:
    found: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        found[number] = remote.encode(f"the fox {number}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: local.encode(f"the fox {number}") for number in range(8)}


def test_a_process_that_is_stopped_is_replaced_for_short_texts_and_for_long_ones(
    directory: Path, local: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    give_up, answered = TokenizerProcess._give_up, TokenizerProcess._answered

    def given_up(process: TokenizerProcess, seconds: float) -> None:
        monkeypatch.setattr(process_module, "_ANSWER_S", 240.0)  # the next one answers, however slow this machine is
        give_up(process, seconds)

    def patiently_answered(process: TokenizerProcess, request: object, seconds: float) -> object:
        return answered(process, request, max(seconds, process_module._ANSWER_S))

    monkeypatch.setattr(TokenizerProcess, "_give_up", given_up)
    monkeypatch.setattr(TokenizerProcess, "_answered", patiently_answered)
    monkeypatch.setattr(process_module, "_CHARS_PER_S", 1e6)
    process = TokenizerProcess(directory)
    try:
        tokenizer = process.tokenizer()
        for text in ("the", "the fox " * LONG_CHARS):
            first = process.pid
            monkeypatch.setattr(process_module, "_ANSWER_S", 0.5)
            os.kill(first, signal.SIGSTOP)
            assert tokenizer.encode(text) == local.encode(text)
            assert process.pid != first
        assert caplog.text.count("has not answered within") == 2
    finally:
        process.close()


def test_files_that_have_gone_are_no_fault_of_the_client_s_and_it_comes_back_by_itself(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage_module, "_FIRST_DELAY_S", 1e-3)
    there, gone = tmp_path / "there", tmp_path / "gone"
    shutil.copytree(directory, there)
    process = TokenizerProcess(there)
    try:
        tokenizer = process.tokenizer()
        there.rename(gone)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(TokenizerLostError, match="can't be started again") as caught:
            tokenizer.encode("the")
        assert str(tmp_path) not in str(caught.value)
        assert tokenizer.outages == {"tokenizer": str(caught.value)}
        gone.rename(there)
        thread = next(one for one in threading.enumerate() if one.name.startswith("retry the tokenizer's"))
        thread.join(60)  # it ends once the process is there
        assert not tokenizer.outages
        assert caplog.text.count("can't be had") == 1
        assert "tokenizer.json is missing" in caplog.text
        assert "is there again" in caplog.text
    finally:
        process.close()
