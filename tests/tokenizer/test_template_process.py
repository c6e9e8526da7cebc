"""A stranger's template has its time and its memory, and takes nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import RequestError, TokenizerError, TokenizerLostError
from unicorn_async.tokenizer import ChatMessage, RenderingSlowError, Tokenizer, ToolCall, template_process
from unicorn_async.tokenizer import outage as outage_module
from unicorn_async.tokenizer.caller import Caller
from unicorn_async.tokenizer.child import limit_waits
from unicorn_async.tokenizer.conversation import Conversation, TemplateSource
from unicorn_async.tokenizer.local_conversations import LocalConversations
from unicorn_async.tokenizer.template_process import TemplateProcess

from . import builders
from .hostile import HOSTILE, KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from unicorn_async.tokenizer.child import Child

SOURCE = TemplateSource(HOSTILE, {"bos_token": "<bos>"}, ("<bos>", "<end>"))


def says(text: str) -> Conversation:
    return Conversation([ChatMessage("user", text)])


def begun(source: TemplateSource = SOURCE) -> TemplateProcess:
    process = TemplateProcess()
    process.prepare(source)
    return process


@pytest.fixture(autouse=True, scope="module")
def time_enough() -> Iterator[None]:
    """What ends by itself may take its time here; tests of what does not have limits of their own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SHORT_SECONDS", "MAX_SECONDS", "_LATE_S"):
            patch.setattr(template_process, name, 60.0)
        yield


@pytest.fixture(scope="module")
def shared() -> Iterator[TemplateProcess]:
    with closing(begun()) as process:
        yield process


@pytest.fixture
def process() -> Iterator[TemplateProcess]:
    with closing(begun()) as process:
        yield process


def copies(process: TemplateProcess) -> set[int]:
    """The processes that it has made of itself."""
    return {int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()}


def until(wanted: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not wanted():
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    "conversation",
    [
        says("Hi"),
        says("<bos>\U0001f984 <end\ud800>" * 9),
        Conversation([ChatMessage("user", "a"), ChatMessage("assistant", "b<en")], continue_final=True),
        Conversation([ChatMessage("assistant", "", (ToolCall("1", "add", "{}"),))], tools=[{"name": "<end>"}]),
        Conversation([ChatMessage("user", "Hi")], add_generation_prompt=False, variables={"tone": "calm"}),
        says("x" * 200_000),
    ],
    ids=["plain", "control", "continued", "tools", "variables", "long"],
)
def test_conversations_have_the_same_text_as_in_this_process(
    shared: TemplateProcess, conversation: Conversation
) -> None:
    local = LocalConversations(SOURCE)
    assert shared.text(conversation) == local.text(conversation)
    assert shared.names == local.names >= {"tone"}


def test_what_is_refused_is_refused_there(shared: TemplateProcess) -> None:
    for conversations in (shared, shared.hasty()):
        with pytest.raises(RequestError, match="refuses the conversation: not so"):
            conversations.text(says("refuse"))
        with pytest.raises(RequestError, match="role: expected"):
            conversations.text(Conversation([ChatMessage("nobody", "Hi")]))
        with pytest.raises(TokenizerError, match="ZeroDivisionError"):
            conversations.text(says("fail"))
        assert "Hi" in conversations.text(says("Hi")).text


def test_a_template_that_is_not_valid_is_refused_when_it_is_prepared() -> None:
    with closing(TemplateProcess()) as process, pytest.raises(TokenizerError, match="chat template: "):
        process.prepare(SOURCE._replace(text="{% for %}"))


def test_a_template_that_takes_too_long_to_prepare_is_refused() -> None:
    with closing(TemplateProcess()) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(process.pid, signal.SIGPROF)  # as the kernel does after that time
        os.kill(process.pid, signal.SIGCONT)
        with pytest.raises(TokenizerError, match="preparing it took more than 60 s"):
            process.prepare(SOURCE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_conversation_gets_an_error_and_the_next_one_its_text(
    shared: TemplateProcess, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = copies(shared)
    with monkeypatch.context() as patch:
        if kind != "memory":
            patch.setattr(template_process, "MAX_SECONDS", 0.3)
        with pytest.raises(TokenizerError, match=r"MemoryError" if kind == "memory" else r"took more than 0\.3 s"):
            shared.text(says(kind))
    assert "Hi" in shared.text(says("Hi")).text
    until(lambda: copies(shared) <= before)  # nothing goes on, and the memory is back


def test_who_stands_in_a_row_is_told_soon_and_makes_room_for_the_next(
    process: TemplateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = process.hasty()
    [first] = copies(process)
    for _ in range(3):
        assert "Hi" in hasty.text(says("Hi")).text
    assert copies(process) == {first}, "one renders them all"
    monkeypatch.setattr(template_process, "SHORT_SECONDS", 0.1)
    with pytest.raises(RenderingSlowError):
        hasty.text(says("forever"))
    monkeypatch.undo()
    assert "Hi" in hasty.text(says("Hi")).text
    until(lambda: first not in copies(process))
    with pytest.raises(RenderingSlowError):  # which is as much as others should wait for to be encoded
        hasty.text(says("many words"))


def test_a_copy_that_has_become_large_ends(shared: TemplateProcess) -> None:
    hasty = shared.hasty()
    hasty.text(says("Hi"))
    before = copies(shared)
    assert "large" in hasty.text(says("large")).text
    until(lambda: before - copies(shared))
    assert "Hi" in hasty.text(says("Hi")).text


def renders(pid: int) -> bool:
    """Whether a process has had the processor for a while."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(fields[11]) + int(fields[12]) > 5


def test_a_copy_that_is_killed_is_made_again(process: TemplateProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    [resident] = copies(process)
    make, killed = process._copy, []

    def copy(seconds: float) -> Connection:
        connection = make(seconds)
        if not killed:
            [pid] = copies(process) - {resident}
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        return connection

    monkeypatch.setattr(process, "_copy", copy)
    assert "Hi" in process.text(says("Hi")).text
    assert killed


def test_a_conversation_that_loses_its_copy_twice_gets_an_error(process: TemplateProcess) -> None:
    [resident] = copies(process)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(process.text, says("forever"))
        for _ in range(2):
            until(lambda: any(map(renders, copies(process) - {resident})))
            [pid] = copies(process) - {resident}
            os.kill(pid, signal.SIGKILL)
            until(lambda gone=pid: gone not in copies(process))
        with pytest.raises(TokenizerLostError, match="has ended"):
            waiting.result()
    assert "Hi" in process.text(says("Hi")).text


def test_a_process_that_dies_is_started_again(process: TemplateProcess, caplog: pytest.LogCaptureFixture) -> None:
    first = process.pid
    os.killpg(first, signal.SIGKILL)
    assert "Hi" in process.hasty().text(says("Hi")).text
    assert process.pid != first
    assert "the chat template's process has ended (signal 9)" in caplog.text
    process.close()
    for conversations in (process, process.hasty()):
        with pytest.raises(TokenizerLostError, match="has ended"):
            conversations.text(says("Hi"))


def test_a_process_that_cannot_be_had_is_an_outage_and_comes_back_by_itself(
    process: TemplateProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*_: object) -> Child:
        raise TokenizerLostError("the chat template's process can't be started: Too many open files")

    monkeypatch.setattr(outage_module, "_FIRST_DELAY_S", 1e-3)
    with monkeypatch.context() as patch:
        patch.setattr("unicorn_async.tokenizer.lasting_child.Child", none)
        os.killpg(process.pid, signal.SIGKILL)
        for conversations in (process, process.hasty()):
            with pytest.raises(TokenizerLostError, match="Too many open files"):
                conversations.text(says("Hi"))
        assert process.outage == "the chat template's process can't be started: Too many open files"
        thread = next(one for one in threading.enumerate() if one.name.startswith("retry the chat template's"))
    thread.join(60)  # it ends once the process is there
    assert process.outage is None
    assert "Hi" in process.text(says("Hi")).text
    assert caplog.text.count("can't be had") == 1
    assert "is there again" in caplog.text


def test_what_is_out_of_reach_is_given_up(process: TemplateProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    start_again, [resident], first = process._start_again, copies(process), process.pid

    def with_time_enough() -> None:
        monkeypatch.setattr(template_process, "_LATE_S", 60.0)
        start_again()

    for number in (resident, first):
        os.kill(number, signal.SIGSTOP)
    monkeypatch.setattr(process, "_start_again", with_time_enough)
    monkeypatch.setattr(template_process, "SHORT_SECONDS", 0.1)
    limit_waits(process._idle[0], 0.2)  # as where it was made with so little time
    with pytest.raises(RenderingSlowError):
        process.hasty().text(says("x" * 4_000_000))
    monkeypatch.setattr(template_process, "PATIENCE", 0)
    monkeypatch.setattr(template_process, "_LATE_S", 0.1)
    assert "Hi" in process.text(says("Hi")).text
    assert process.pid != first


def test_closing_ends_who_waits(process: TemplateProcess) -> None:
    [resident] = copies(process)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(process.text, says("forever"))
        until(lambda: copies(process) - {resident})
        process.close()
        with pytest.raises(TokenizerLostError):
            waiting.result()


def test_what_nobody_waits_for_any_more_ends(shared: TemplateProcess) -> None:
    before, caller = copies(shared), Caller()
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(caller.run, lambda: shared.text(says("forever")))
        until(lambda: copies(shared) - before)
        caller.go()
        with pytest.raises(TokenizerLostError):
            waiting.result()
        until(lambda: copies(shared) <= before)
        with pytest.raises(TokenizerLostError):
            caller.run(lambda: shared.text(says("Hi")))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_all_of_it_ends_with_the_process_that_began_it() -> None:
    program = (
        "from tests.tokenizer.test_template_process import begun, copies, says, template_process\n"
        "template_process.MAX_SECONDS = 600.0\n"
        "process = begun()\n"
        "print(process.pid, *copies(process), flush=True)\n"
        "process.text(says('forever'))\n"
    )
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    first, *others = map(int, server.stdout.readline().split())
    children = Path(f"/proc/{first}/task/{first}/children")
    until(lambda: len(children.read_text().split()) > len(others))
    pids = {first, *map(int, children.read_text().split())}
    server.kill()
    server.wait()
    server.stdout.close()
    until(lambda: not any(map(lives, pids)))


def test_other_threads_go_on_while_a_template_is_at_a_long_operation(
    shared: TemplateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_process, "MAX_SECONDS", 1.0)
    done, num_turns = threading.Event(), 0

    def render() -> None:
        with pytest.raises(TokenizerError, match="took more than"):
            shared.text(says("forever"))
        done.set()

    thread = threading.Thread(target=render)
    thread.start()
    while not done.wait(0.001):
        num_turns += 1
    thread.join()
    assert num_turns > 20


def test_a_tokenizer_encodes_what_was_rendered_elsewhere(tmp_path: Path) -> None:
    local = Tokenizer.load(builders.write(tmp_path, builders.byte_level()))
    assert local.chat_template is not None
    with closing(begun(local.facts.template_source(local.chat_template))) as process:
        remote = local.with_conversations(process)
        for tokenizer in (remote, remote.hasty()):
            for text in ("the quick <bos> fox", "<start_of_turn>", "<eos", "x" * 9000):
                messages = [ChatMessage("user", text), ChatMessage("assistant", "<eos>"), ChatMessage("user", "the")]
                assert tokenizer.encode_chat(messages) == local.encode_chat(messages)
                assert tokenizer.chat_text(messages) == local.chat_text(messages)
        assert remote.template_names == local.template_names
