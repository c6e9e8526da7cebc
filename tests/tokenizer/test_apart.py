"""Long texts are encoded beside everything else, and refused where they can't fit."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from tests.patience import wait_until
from unicorn_async.errors import PromptTooLongError, RequestError, TokenizerError, TokenizerLostError
from unicorn_async.tokenizer import LONG_CHARS, ChatMessage, Tokenizer
from unicorn_async.tokenizer import outage as outage_module
from unicorn_async.tokenizer import process as process_module
from unicorn_async.tokenizer.byte_bound import byte_bound
from unicorn_async.tokenizer.caller import Caller
from unicorn_async.tokenizer.encoder import BackendEncoder
from unicorn_async.tokenizer.on_demand import OnDemandProcess
from unicorn_async.tokenizer.pieces import Pieces
from unicorn_async.tokenizer.process import TokenizerProcess

from . import builders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

LONG = "the quick brown fox 🦄 " * (LONG_CHARS // 16)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builders.write(tmp_path_factory.mktemp("tokenizer"), builders.byte_level())


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


def copies(process: TokenizerProcess) -> list[int]:
    """The processes that the tokenizer's process has made of itself."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


class FirstCopy:
    """Sends a signal to the next copy that a process makes of itself, which has nothing to encode by then."""

    def __init__(self, patch: pytest.MonkeyPatch, process: TokenizerProcess, number: signal.Signals) -> None:
        self.is_there = threading.Event()
        self.pid = 0
        before, await_copy = set(copies(process)), process._await_copy

        def awaited(connection: Connection, pid: int) -> None:
            await_copy(connection, pid)
            if not self.pid:
                (self.pid,) = set(copies(process)) - before
                os.kill(self.pid, number)
                self.is_there.set()

        patch.setattr(process, "_await_copy", awaited)

    def wait(self) -> int:
        """Wait until the signal was sent; return the copy's number."""
        assert self.is_there.wait(240)
        return self.pid


@contextmanager
def without_collections() -> Iterator[None]:
    """What goes within goes by itself: a server's collections are seldom, and large texts are few objects."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_text_that_is_refused_is_kept_by_nobody(remote: Tokenizer) -> None:
    with without_collections():
        with pytest.raises(PromptTooLongError):
            remote.encode(LONG, max_context=8)
        assert not [found for found in gc.get_objects() if isinstance(found, PromptTooLongError)]


def test_long_texts_have_the_same_ids(remote: Tokenizer, local: Tokenizer) -> None:
    assert remote.encode(LONG) == local.encode(LONG)
    assert remote.encode(LONG, add_bos=False) == local.encode(LONG, add_bos=False)
    conversation = [ChatMessage("user", f"<bos>{LONG}<eos>"), ChatMessage("assistant", "x"), ChatMessage("user", "Hi")]
    assert remote.encode_chat(conversation) == local.encode_chat(conversation)
    plain = remote.encode_chat(conversation, add_generation_prompt=False)
    assert plain == local.encode_chat(conversation, add_generation_prompt=False)


def test_short_texts_do_not_wait_for_long_ones(
    process: TokenizerProcess, remote: Tokenizer, local: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_ANSWER_S", 240.0)
    text, copy = LONG * 40, FirstCopy(monkeypatch, process, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as executor:
        encoding = executor.submit(remote.encode, text)
        pid = copy.wait()
        assert remote.encode("the fox") == local.encode("the fox")
        assert remote.pieces[5] == local.pieces[5]
        assert not encoding.done()
        os.kill(pid, signal.SIGCONT)
        assert encoding.result() == local.encode(text)
    wait_until(lambda: not copies(process))  # its memory is back


def test_what_is_wrong_with_a_long_text_is_said(remote: Tokenizer) -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        remote.encode(LONG + "\ud800")


def test_a_copy_that_dies_is_made_again_once(
    process: TokenizerProcess, remote: Tokenizer, local: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, copy = LONG * 40, FirstCopy(monkeypatch, process, signal.SIGKILL)
    assert remote.encode(text) == local.encode(text)
    assert copy.wait()


def test_a_process_that_dies_is_started_again_for_a_long_text(directory: Path, local: Tokenizer) -> None:
    process = TokenizerProcess(directory)
    remote = process.tokenizer()
    os.kill(process.pid, signal.SIGKILL)
    assert remote.encode(LONG) == local.encode(LONG)
    process.close()
    with pytest.raises(TokenizerLostError):
        remote.encode(LONG)


def test_without_files_to_open_a_long_text_is_the_servers_fault(
    remote: Tokenizer, local: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_files() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", no_files)
        with pytest.raises(TokenizerLostError, match="can't be reached: Too many open files"):
            remote.encode(LONG)
    assert remote.encode(LONG) == local.encode(LONG)


def test_a_small_vocabulary_has_a_process_while_a_long_text_is_encoded(directory: Path, local: Tokenizer) -> None:
    apart = OnDemandProcess(directory)
    tokenizer = local.with_apart(apart)
    assert tokenizer.encode("the fox") == local.encode("the fox")
    assert apart._process is None
    with ThreadPoolExecutor(2) as executor:
        assert (
            len({tuple(ids) for ids in executor.map(tokenizer.encode, [LONG, LONG])} | {tuple(local.encode(LONG))}) == 1
        )
    assert apart._process is None
    apart.close()
    with pytest.raises(TokenizerError, match="closed"):
        tokenizer.encode(LONG)


def test_long_texts_that_cannot_be_encoded_are_an_outage_that_ends_by_itself(
    directory: Path,
    local: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(outage_module, "_FIRST_DELAY_S", 1e-3)
    there, gone = tmp_path / "there", tmp_path / "gone"
    shutil.copytree(directory, gone)
    apart = OnDemandProcess(there)
    tokenizer = local.with_apart(apart)
    with closing(apart):
        with pytest.raises(TokenizerLostError, match="no long text is encoded") as caught:
            tokenizer.encode(LONG)
        assert tokenizer.outages == {"long_texts": str(caught.value)}
        assert str(tmp_path) not in str(caught.value)
        assert tokenizer.encode("the fox") == local.encode("the fox")
        thread = next(one for one in threading.enumerate() if one.name.startswith("retry the tokenizer's"))
        gone.rename(there)
        thread.join(60)  # it ends once the process can be had
        assert not tokenizer.outages
        assert apart._process is None
        assert tokenizer.encode(LONG) == local.encode(LONG)
    assert caplog.text.count("can't be had") == 1
    assert str(there) in caplog.text


def test_closing_ends_who_waits_for_a_long_text(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = TokenizerProcess(directory)
    remote = process.tokenizer()
    copy = FirstCopy(monkeypatch, process, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as executor:
        encoding = executor.submit(remote.encode, LONG * 40)
        copy.wait()
        process.close()
        with pytest.raises(TokenizerLostError):
            encoding.result()


def test_closing_waits_for_no_process_that_is_started_for_a_long_text(
    directory: Path, local: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, made = threading.Event(), TokenizerProcess.tokenizer

    def make_stopped(process: TokenizerProcess) -> Tokenizer:
        os.kill(process.pid, signal.SIGSTOP)
        begins.set()
        return made(process)

    monkeypatch.setattr(process_module, "_START_S", 240.0)
    monkeypatch.setattr(TokenizerProcess, "tokenizer", make_stopped)
    apart = OnDemandProcess(directory)
    with ThreadPoolExecutor(1) as executor:
        encoding = executor.submit(local.with_apart(apart).encode, LONG)
        assert begins.wait(240)
        began = time.monotonic()
        apart.close()
        with pytest.raises(TokenizerLostError):
            encoding.result()
    assert time.monotonic() - began < 200


def test_a_long_text_that_nobody_waits_for_any_more_is_given_up(
    process: TokenizerProcess, remote: Tokenizer, local: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, copy = Caller(), FirstCopy(monkeypatch, process, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as executor:
        encoding = executor.submit(caller.run, lambda: remote.encode(LONG * 200))
        pid = copy.wait()
        caller.go()
        with pytest.raises(TokenizerLostError):
            encoding.result()
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: pid not in copies(process))
    assert remote.encode(LONG) == local.encode(LONG)


def test_what_is_sure_to_be_too_long_is_not_encoded(local: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    encode = BackendEncoder.encode

    def noted(encoder: BackendEncoder, text: str, *, with_control: bool) -> list[int]:
        encoded.append(len(text))
        return encode(encoder, text, with_control=with_control)

    monkeypatch.setattr(BackendEncoder, "encode", noted)
    longest = max(len(local.pieces[token_id]) for token_id in range(local.facts.num_ids))
    for tokens in (lambda text: local.encode(text, max_context=100), lambda text: chat(local, text)):
        with pytest.raises(PromptTooLongError, match="tokens at least; a context of 100 has no room"):
            tokens("x" * (3 * 101 * longest))
    assert encoded == []
    with pytest.raises(PromptTooLongError, match=r"the prompt has \d+ tokens; a context of 100"):
        local.encode("x" * 150, max_context=100)
    assert encoded == [150]
    ids = local.encode("x" * 80)
    assert local.encode("x" * 80, max_context=len(ids) + 1) == ids
    with pytest.raises(PromptTooLongError):
        local.encode("x" * 80, max_context=len(ids))


def chat(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_chat([ChatMessage("user", text)], max_context=100)


TEXTS = (
    st.text() | st.text("the quick \n\t").map(lambda text: text * 20) | st.sampled_from(["각" * 9, "é" * 50, "𝐱" * 90])
)
KINDS = [builders.byte_level, builders.sentencepiece_bpe, builders.sentencepiece_prefixed]


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, form=st.sampled_from([None, normalizers.NFC, normalizers.NFKC]))
def test_no_text_has_fewer_tokens_than_its_bytes_say(
    make: Callable[[], tokenizers.Tokenizer], text: str, form: type[normalizers.Normalizer] | None
) -> None:
    backend = make()
    if form is not None and backend.normalizer is None:
        backend.normalizer = form()
    bound = byte_bound(backend, Pieces(backend))
    assert bound is not None
    assert bound.least_tokens(text) <= len(backend.encode(text, add_special_tokens=False).ids)


def test_tokens_that_take_the_space_beside_them_count_without_it() -> None:
    backend = builders.byte_level()
    backend.add_special_tokens([tokenizers.AddedToken("<|end|>", rstrip=True)])
    bound = byte_bound(backend, Pieces(backend))
    assert bound is not None
    assert bound.least_tokens("<|end|>" + " " * 10_000) <= 2
    assert bound.least_tokens("x" * 10_000) > 100


def test_nothing_is_said_of_tokenizers_that_may_drop_text() -> None:
    for change in (
        lambda one: setattr(one, "normalizer", normalizers.Strip()),
        lambda one: setattr(one, "pre_tokenizer", pre_tokenizers.Whitespace()),
        lambda one: setattr(one, "pre_tokenizer", pre_tokenizers.Split(" ", "removed")),
    ):
        backend = builders.byte_level()
        change(backend)
        assert byte_bound(backend, Pieces(backend)) is None
    unigram = builders.unigram()
    assert byte_bound(unigram, Pieces(unigram)) is None


def test_other_threads_go_on_while_a_long_text_is_encoded_here(local: Tokenizer) -> None:
    """As often as the system lets them, which on a busy machine may be seldom."""
    assert any(turns_beside(lambda: local.encode(LONG * 60)) > 20 for _ in range(20))


def turns_beside(work: Callable[[], object]) -> int:
    """Return how often this thread had its turn while another one did some work."""
    done, num_turns = threading.Event(), 0

    def run() -> None:
        work()
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not done.is_set():
        time.sleep(0.001)
        num_turns += 1
    thread.join()
    return num_turns
