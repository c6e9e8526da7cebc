"""Processes that follow grammars: answers in any order, limits of what one may take, an end that is told."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import resource
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.patience import wait_until
from unicorn_async.errors import GrammarError, GrammarLostError
from unicorn_async.grammar import Grammar
from unicorn_async.guidance.follower import Follower, GrammarSlowError
from unicorn_async.guidance.matchers import Matchers
from unicorn_async.guidance.messages import Advance, Begin, End
from unicorn_async.guidance.process import GuidanceProcess, ProcessEndedError

from .test_matchers import made_vocabulary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ENDLESS = Grammar.json_schema({"allOf": [{"type": "string", "pattern": f".*{chr(97 + n)}.*"} for n in range(26)]})


FOLLOWERS: list[Follower] = []  # to be closed behind a test


@pytest.fixture
async def process() -> AsyncIterator[GuidanceProcess]:
    made = await GuidanceProcess.start(made_vocabulary())
    yield made
    while FOLLOWERS:
        FOLLOWERS.pop().close()
    await made.close()
    await asyncio.sleep(0)  # their connections are closed
    assert made.has_ended


async def following(process: GuidanceProcess, grammar: Grammar) -> Follower:
    follower = await process.copy()
    FOLLOWERS.append(follower)
    await follower.compile(grammar, is_short=False)
    return follower


def copies_of(process: GuidanceProcess) -> list[int]:
    task = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in task.read_text().split()]


def num_files(process: GuidanceProcess) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


async def gone(pid: int) -> bool:
    """Wait until a process has ended; return whether it has."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    found, _, _ = await asyncio.to_thread(select.select, [watch], [], [], 60)
    os.close(watch)
    return bool(found)


async def test_they_say_what_matchers_in_this_process_say(process: GuidanceProcess) -> None:
    grammars = [Grammar.regex("[ab]{3}x"), Grammar.choice(["abc", "abd"])]
    for grammar in grammars:
        here, follower = Matchers(made_vocabulary()), await following(process, grammar)
        masks = await asyncio.gather(*(follower.ask(Begin(key)) for key in range(2)))
        assert masks == [here.open(key, grammar) for key in range(2)]
        for byte in b"ab":
            masks = await asyncio.gather(*(follower.ask(Advance(key, (byte,))) for key in range(2)))
            assert masks == [here.advance(key, [byte]) for key in range(2)]
        await follower.ask(End(1))
        with pytest.raises(GrammarError, match="has ended"):
            await follower.ask(Advance(1, (ord("x"),)))


async def test_what_is_wrong_is_said_and_the_next_is_answered(process: GuidanceProcess) -> None:
    with pytest.raises(GrammarError, match="regex"):
        await following(process, Grammar.regex("("))
    assert await (await following(process, Grammar.regex("a"))).ask(Begin(1))


async def test_one_that_takes_too_much_time_is_ended_and_no_other(process: GuidanceProcess) -> None:
    other, slow = await following(process, Grammar.regex("a")), await process.copy()
    with pytest.raises(GrammarSlowError):
        await slow.compile(ENDLESS, is_short=True)
    assert slow.has_ended
    assert await other.ask(Begin(1))


async def test_one_that_finds_no_memory_ends_by_its_grammars_fault(process: GuidanceProcess) -> None:
    follower = await process.copy()
    compiling = asyncio.create_task(follower.compile(Grammar.regex("a"), is_short=False))
    os.kill(copies_of(process)[0], signal.SIGABRT)  # as Rust does without memory
    with pytest.raises(GrammarError, match="takes more than 1024 MiB"):
        await compiling


async def test_who_asks_one_that_has_ended_before_that_was_read_is_told_why(process: GuidanceProcess) -> None:
    before = num_files(process)
    follower = await following(process, Grammar.json_object())
    os.kill(copies_of(process)[0], signal.SIGABRT)
    wait_until(lambda: not copies_of(process))  # and the event loop reads nothing meanwhile
    with pytest.raises(GrammarError, match="takes more than 1024 MiB"):
        await follower.ask(Begin(1))
    wait_until(lambda: num_files(process) == before)


async def test_one_that_nobody_waits_for_is_ended_whatever_it_is_at(process: GuidanceProcess) -> None:
    follower, stopped = await process.copy(), await process.copy()
    pids = copies_of(process)
    compiling = asyncio.create_task(follower.compile(ENDLESS, is_short=False))
    os.kill(pids[1], signal.SIGSTOP)
    await asyncio.sleep(0)
    compiling.cancel()
    follower.close()
    stopped.close()
    for pid in pids:
        assert await gone(pid)


async def test_an_end_is_told_to_who_waits_and_who_asks_later(
    process: GuidanceProcess, caplog: pytest.LogCaptureFixture
) -> None:
    follower = await following(process, Grammar.json_object())
    (pid,) = copies_of(process)
    os.kill(pid, signal.SIGSTOP)
    waiting = follower.ask(Begin(1))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(GrammarLostError):
        await waiting
    with pytest.raises(GrammarLostError):
        await follower.ask(End(1))
    assert "has ended (-9)" in caplog.text
    assert await (await following(process, Grammar.json_object())).ask(Begin(1))


async def test_one_that_does_not_answer_is_given_up(
    process: GuidanceProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("unicorn_async.guidance.follower.ANSWER_S", 0.05)
    follower, compiling = await following(process, Grammar.json_object()), await process.copy()
    monkeypatch.setattr("unicorn_async.guidance.follower.LONG_SECONDS", 0.01)
    monkeypatch.setattr("unicorn_async.guidance.follower.PATIENCE", 6)
    for pid in copies_of(process):
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(GrammarLostError, match="did not answer"):
        await follower.ask(Begin(1))
    with pytest.raises(GrammarLostError, match="did not answer"):
        await compiling.compile(Grammar.json_object(), is_short=False)
    assert follower.has_ended
    assert caplog.text.count("it is ended") == 2


async def test_one_that_is_stopped_with_all_others_is_waited_for_once(
    process: GuidanceProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("unicorn_async.guidance.follower.ANSWER_S", 0.05)
    first, second, third = [await following(process, Grammar.json_object()) for _ in range(3)]
    os.kill(copies_of(process)[0], signal.SIGSTOP)
    with pytest.raises(GrammarLostError, match="did not answer"):
        await first.ask(Begin(1))
    assert not process.has_ended
    os.killpg(process.pid, signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # a busy machine is late
    with pytest.raises(GrammarLostError, match="did not answer"):
        await second.ask(Begin(1))
    async with asyncio.timeout(120):
        await asyncio.wait([third._reading])
        with pytest.raises(ProcessEndedError):
            await process.copy()
    assert "is stopped; it is ended" in caplog.text


async def test_a_copy_for_which_there_is_no_file_is_not_made_and_the_process_stays(
    process: GuidanceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    follower = await following(process, Grammar.json_object())
    with monkeypatch.context() as patch:
        patch.setattr("unicorn_async.guidance.process.socket.socketpair", none)
        with pytest.raises(GrammarLostError, match=r"made no copy of itself \(Too many open files\)"):
            await process.copy()
    used = set(map(int, os.listdir(f"/proc/{process.pid}/fd")))
    _, second = itertools.islice((number for number in itertools.count() if number not in used), 2)
    earlier = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (second, earlier[1]))  # the copy's socket, and no more
    with pytest.raises(GrammarLostError):
        await following(process, Grammar.json_object())
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, earlier)
    assert await follower.ask(Begin(1))
    assert await (await following(process, Grammar.json_object())).ask(Begin(1))


async def test_a_maker_that_does_not_answer_is_ended(
    process: GuidanceProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await following(process, Grammar.json_object())
    monkeypatch.setattr("unicorn_async.guidance.process.ANSWER_S", 0.05)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(GrammarLostError, match="did not answer within"):
        await process.copy()
    assert process.has_ended
    assert "is ended" in caplog.text


async def test_a_maker_that_ends_takes_its_copies_along_when_it_is_closed(
    process: GuidanceProcess, caplog: pytest.LogCaptureFixture
) -> None:
    follower = await following(process, Grammar.json_object())
    (pid,) = copies_of(process)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ProcessEndedError, match="made no copy"):
        await process.copy()
    assert process.has_ended
    await process.close()
    await asyncio.wait([follower._reading], timeout=120)
    with pytest.raises(GrammarLostError):
        await follower.ask(Begin(1))
    assert await gone(pid)
    assert "the one that made it" not in caplog.text  # nobody waited for it


async def test_a_vocabulary_without_an_end_is_told_to_everybody() -> None:
    process = await GuidanceProcess.start(made_vocabulary()._replace(eos_token_ids=()))
    for _ in range(2):
        with pytest.raises(GrammarError, match="no token that ends an answer"):
            await following(process, Grammar.json_object())
    await process.close()


async def test_whatever_goes_wrong_with_an_answer_is_told_and_others_go_on(process: GuidanceProcess) -> None:
    follower = await following(process, Grammar.regex("[ab]+"))
    await follower.ask(Begin(1))
    async with asyncio.timeout(120):
        with pytest.raises(GrammarError, match=r"can't be followed \(OverflowError\)"):
            await follower.ask(Advance(1, (1 << 70,)))
        assert await follower.ask(Begin(2))


async def test_who_waits_is_told_where_what_it_says_is_not_understood(
    process: GuidanceProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(data: bytes) -> object:
        raise ValueError("not a message")

    follower = await following(process, Grammar.json_object())
    monkeypatch.setattr("unicorn_async.guidance.follower.pickle.loads", broken)
    async with asyncio.timeout(120):
        with pytest.raises(GrammarLostError):
            await follower.ask(Begin(1))
    assert follower.has_ended
    assert "is not understood" in caplog.text
