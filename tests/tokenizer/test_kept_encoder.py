"""Who waits for the whole tokenizer beside one that was kept, and what is told of a whole that can not be had."""

from __future__ import annotations

import asyncio
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import RequestError, TokenizerLostError
from unicorn_async.resources import demo_model_dir
from unicorn_async.server.protocol.errors import describe_error
from unicorn_async.tokenizer import ChatMessage, Tokenizer
from unicorn_async.tokenizer import outage as outage_module
from unicorn_async.tokenizer.excerpt import MAX_TEXT_CHARS
from unicorn_async.tokenizer.kept_encoder import KeptEncoder
from unicorn_async.tokenizer.kept_folder import KeptFolder
from unicorn_async.tokenizer.process import TokenizerProcess

from .held_process import HeldProcess
from .kept_forms import kept_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def local() -> Tokenizer:
    return Tokenizer.load(demo_model_dir())


@pytest.fixture
def held(local: Tokenizer) -> HeldProcess:
    return HeldProcess(local)


@pytest.fixture
def encoder(local: Tokenizer, held: HeldProcess) -> KeptEncoder:
    return KeptEncoder(kept_of(local), held)  # type: ignore[arg-type]


def test_a_short_text_waits_for_nothing_and_a_long_one_for_the_whole(
    local: Tokenizer, held: HeldProcess, encoder: KeptEncoder
) -> None:
    tokenizer = Tokenizer(encoder, local.facts)
    assert tokenizer.encode("Hello there") == local.encode("Hello there")
    assert tokenizer.decode(local.encode("Hello there")) == "Hello there"
    assert held.texts == []
    long = "word " * MAX_TEXT_CHARS
    found: list[list[int]] = []
    thread = threading.Thread(target=lambda: found.append(tokenizer.encode(long)))
    thread.start()
    held.made.set()
    thread.join(20)
    assert found == [local.encode(long)]
    assert held.texts == [long]
    assert tokenizer.encode("Hello there") == local.encode("Hello there")
    assert held.texts == [long, "Hello there"]
    encoder.close()


async def test_texts_that_wait_for_the_whole_hold_no_threads(
    local: Tokenizer, held: HeldProcess, encoder: KeptEncoder
) -> None:
    tokenizer, long = Tokenizer(encoder, local.facts), "word " * MAX_TEXT_CHARS
    message = [ChatMessage("user", long)]
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with asyncio.timeout(20):
        waiting = [
            asyncio.create_task(tokenizer.encode_soon(encode, asyncio.to_thread))
            for encode in (lambda its: its.encode(long), lambda its: its.encode_chat(message))
            for _ in range(4)
        ]
        soon = await tokenizer.encode_soon(lambda its: its.encode("Hello there"), asyncio.to_thread)
        assert soon == local.encode("Hello there")
        waiting.pop().cancel()
        await asyncio.to_thread(lambda: None)
        assert not any(task.done() for task in waiting) and held.texts == []
        held.made.set()
        found = await asyncio.gather(*waiting)
    assert found == [local.encode(long)] * 4 + [local.encode_chat(message)] * 3
    assert await tokenizer.encode_soon(lambda its: its.encode(long), asyncio.to_thread) == local.encode(long)
    encoder.close()


async def test_a_whole_that_can_not_be_had_is_an_error_of_who_needs_it_until_it_can(
    local: Tokenizer, held: HeldProcess, encoder: KeptEncoder
) -> None:
    held.failure = TokenizerLostError("not to be had")
    tokenizer, long = Tokenizer(encoder, local.facts), "x" * (MAX_TEXT_CHARS + 1)
    waiting = asyncio.create_task(tokenizer.encode_soon(lambda its: its.encode(long), asyncio.to_thread))
    await asyncio.sleep(0)
    held.made.set()
    with pytest.raises(TokenizerLostError, match="not to be had"):
        await waiting
    with pytest.raises(TokenizerLostError, match="not to be had"):
        encoder.encode(long, with_control=False)
    held.failure = None
    assert tokenizer.encode(long) == local.encode(long)


async def test_files_that_changed_since_they_were_kept_are_no_fault_of_the_client_s_and_it_comes_back_by_itself(
    local: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage_module, "_FIRST_DELAY_S", 1e-3)
    there = tmp_path / "there"
    shutil.copytree(demo_model_dir(), there)
    good = (there / "tokenizer.json").read_bytes()
    (there / "tokenizer.json").write_bytes(b"{")
    process = TokenizerProcess(there)
    encoder = KeptEncoder(kept_of(local), process)
    tokenizer = Tokenizer(encoder, local.facts, apart=process)
    try:
        await encoder.whole()
        with pytest.raises(TokenizerLostError, match="the model's files are not what they were") as caught:
            tokenizer.encode("the")
        assert str(tmp_path) not in str(caught.value)
        assert describe_error(caught.value).status == 503
        assert tokenizer.outages == {"tokenizer": str(caught.value)}
        assert caplog.text.count("can't be had") == 1
        assert str(there / "tokenizer.json") in caplog.text
        thread = next(one for one in threading.enumerate() if one.name.startswith("retry the tokenizer's"))
        (there / "tokenizer.json").write_bytes(good)
        await asyncio.to_thread(thread.join, 60)  # it ends once the process is there
        assert not tokenizer.outages
        assert tokenizer.encode("the") == local.encode("the")
    finally:
        encoder.close()


def test_a_text_that_is_no_unicode_is_refused(encoder: KeptEncoder) -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        encoder.encode("\ud800", with_control=False)
    encoder.close()


def test_the_process_keeps_what_it_has_made_while_nobody_asks(tmp_path: Path) -> None:
    folder = KeptFolder(tmp_path)
    file = folder.file_for(demo_model_dir())
    process = TokenizerProcess(demo_model_dir(), keep_in=file)
    tokenizer, waiting = process.tokenizer(), threading.Event()
    for _ in range(400):
        if folder.files() and file is not None and file.exists():
            break
        assert tokenizer.encode("Hello") == Tokenizer.load(demo_model_dir()).encode("Hello")
        waiting.wait(0.05)
    assert file is not None
    kept = folder.read(file)
    assert kept is not None and kept.facts == tokenizer.facts
    process.close()
