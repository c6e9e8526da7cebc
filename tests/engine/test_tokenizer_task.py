"""The tokenizer is made beside the load, and what is wrong with it ends the start."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.checkpoint.gguf.builders import write
from tests.checkpoint.gguf.golden_files import gguf_tensors
from unicorn_async.engine import runner
from unicorn_async.engine import tokenizer_task as tokenizer_start
from unicorn_async.engine.engine import Engine
from unicorn_async.engine.intake import Intake
from unicorn_async.engine.tokenizer_task import TokenizerTask
from unicorn_async.errors import ConfigError, TokenizerError, TokenizerLostError, UnicornError
from unicorn_async.loader.stream import LoadStream
from unicorn_async.memory.choice import choose_device
from unicorn_async.resources import demo_model_dir
from unicorn_async.tokenizer import ChatMessage, Tokenizer, template_process
from unicorn_async.tokenizer.encoder import WholeNeededError
from unicorn_async.tokenizer.kept import parse_kept
from unicorn_async.tokenizer.kept_folder import KeptFolder
from unicorn_async.tokenizer.process import TokenizerProcess

from .answers import answer
from .leftovers import no_leftovers
from .test_gguf import metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.engine.tokenizer_task import MadeTokenizer
    from unicorn_async.tokenizer.kept import KeptTokenizer

    from .conftest import OpenEngine, WriteModel


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with no_leftovers(monkeypatch):
        yield


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[TokenizerProcess]:
    """Have every tokenizer made in a process of its own, and gather them."""
    made: list[TokenizerProcess] = []

    def start(source: Path, **options: Any) -> TokenizerProcess:
        made.append(TokenizerProcess(source, **options))
        return made[-1]

    monkeypatch.setattr(tokenizer_start, "LARGE_BYTES", 0)
    monkeypatch.setattr(tokenizer_start, "TokenizerProcess", start)
    return made


@pytest.fixture
def broken(model_directory: WriteModel, tmp_path: Path) -> Path:
    """A model whose tokenizer.json can't be used."""
    directory = shutil.copytree(model_directory("gemma3"), tmp_path / "model")
    (directory / "tokenizer.json").write_text('{"model": {}}')
    return directory


class Held:
    """Holds the tokenizer back until the load is under way, or a test says so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.going_on = threading.Event()
        self.ended: list[str] = []
        make, run = TokenizerTask.make, LoadStream.run

        def held_make(start: TokenizerTask) -> MadeTokenizer:
            self.going_on.wait(240)
            return make(start)

        async def noted_run(stream: LoadStream) -> None:
            try:
                await run(stream)
                self.ended.append("loaded")
            except BaseException as exc:
                self.ended.append(type(exc).__name__)
                raise
            finally:
                self.going_on.set()

        patch.setattr(TokenizerTask, "make", held_make)
        patch.setattr(LoadStream, "run", noted_run)


async def test_the_load_does_not_wait_for_the_tokenizer(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    async with open_engine() as engine:  # the tokenizer comes once everything is loaded
        assert held.ended == ["loaded"]
        assert engine.tokenizer_s > 0
        await engine.loaded()
        await answer(engine, max_tokens=2)


async def test_a_tokenizer_that_fails_ends_the_load(
    open_engine: OpenEngine, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    begun, wait = asyncio.Event(), asyncio.Event()
    watched = LoadStream.run

    async def stuck_run(stream: LoadStream) -> None:
        begun.set()
        stream.begun.set()
        held.going_on.set()
        try:
            await wait.wait()
        except asyncio.CancelledError:
            held.ended.append("cancelled")
            raise
        await watched(stream)

    monkeypatch.setattr(LoadStream, "run", stuck_run)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        async with open_engine(broken):
            pytest.fail("opened without a tokenizer")
    assert begun.is_set()
    assert held.ended == ["cancelled"]


async def test_a_process_makes_a_large_tokenizer_and_ends_with_the_engine(
    open_engine: OpenEngine, processes: list[TokenizerProcess]
) -> None:
    async with open_engine() as engine:
        expected = engine.tokenizer.encode("the quick brown fox")
        found = await answer(engine, max_tokens=3)
        assert len(found.ids) == 3
    assert len(processes) == 1
    with pytest.raises(TokenizerError, match="has ended"):
        engine.tokenizer.encode("the quick brown fox")
    assert expected


async def test_a_process_that_fails_is_an_error_of_opening(
    broken: Path, open_engine: OpenEngine, processes: list[TokenizerProcess]
) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        async with open_engine(broken):
            pytest.fail("opened without a tokenizer")
    assert len(processes) == 1


async def test_a_process_ends_when_the_device_can_not_be_opened(
    processes: list[TokenizerProcess], model_directory: WriteModel
) -> None:
    with pytest.raises(UnicornError, match="no-such-device"):
        async with Engine.open(model_directory("gemma3"), device="no-such-device"):
            pytest.fail("opened without a device")
    with pytest.raises(TokenizerError, match="has ended"):
        processes[0].encode("text", with_control=False)


async def test_a_process_ends_when_opening_is_cancelled(
    open_engine: OpenEngine, processes: list[TokenizerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, going_on = threading.Event(), threading.Event()

    def slow_choice(*arguments: Any, **options: Any) -> Any:
        opening.set()
        going_on.wait(240)
        return choose_device(*arguments, **options)

    monkeypatch.setattr("unicorn_async.engine.opening.choose_device", slow_choice)

    async def use() -> None:
        async with open_engine():
            pytest.fail("opened after it was cancelled")

    task = asyncio.create_task(use())
    await asyncio.to_thread(opening.wait, 240)
    task.cancel()
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TokenizerError, match="has ended"):
        processes[0].encode("text", with_control=False)


async def test_the_vocabulary_of_a_gguf_file_goes_to_a_process_too(
    tmp_path: Path, open_engine: OpenEngine, processes: list[TokenizerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_start, "_LARGE_VOCABULARY", 1)
    path = write(tmp_path / "tiny.gguf", metadata("llama", tmp_path), gguf_tensors("llama", "F16"))
    async with open_engine(path) as engine:
        ids = engine.tokenizer.encode("some text")
        assert engine.tokenizer.decode(ids) == "some text"
    assert len(processes) == 1


def test_a_second_start_has_its_tokenizer_before_the_process_has_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_start, "LARGE_BYTES", 0)
    folder, model = KeptFolder(tmp_path), demo_model_dir()
    first = TokenizerTask(model, folder)
    first.begin(model)
    expected = first.make().tokenizer.encode("What is 17 + 25?")
    waiting = threading.Event()
    while not any(path.suffix == ".tokenizer" for path, _ in folder.files()):
        waiting.wait(0.02)
    first.close()

    started: list[dict[str, object]] = []
    ended = threading.Event()

    class Stuck:
        def __init__(self, source: Path, **options: object) -> None:
            started.append(options)

        def make(self) -> None:
            ended.wait(240)
            raise TokenizerLostError("the tokenizer's process has ended")

        def close(self) -> None:
            ended.set()

    taken_apart: list[bool] = []

    def noted_parse(content: memoryview) -> KeptTokenizer:
        taken_apart.append(True)
        return parse_kept(content)

    monkeypatch.setattr(tokenizer_start, "TokenizerProcess", Stuck)
    monkeypatch.setattr(tokenizer_start, "parse_kept", noted_parse)
    second = TokenizerTask(str(model), folder)
    second.begin(model)
    assert not taken_apart, "that keeps other threads waiting"
    assert second.has_kept and not first.has_kept
    assert second.make().tokenizer.encode("What is 17 + 25?") == expected
    assert started == [{"keep_in": None, "in_background": True}]
    second.close()


@pytest.mark.parametrize("is_kept", [True, False])
async def test_what_is_made_of_a_kept_one_waits_until_the_model_runs(
    is_kept: bool, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    made = threading.Event()
    make, make_runner = TokenizerTask.make, runner.make_runner

    def noted_make(start: TokenizerTask) -> MadeTokenizer:
        order.append("tokenizer")
        made.set()
        return make(start)

    async def noted_runner(*arguments: Any) -> Any:
        if not is_kept:
            await asyncio.to_thread(made.wait, 240)
        found = await make_runner(*arguments)
        order.append("runner")
        return found

    monkeypatch.setattr(TokenizerTask, "has_kept", is_kept)
    monkeypatch.setattr(TokenizerTask, "make", noted_make)
    monkeypatch.setattr(runner, "make_runner", noted_runner)
    async with open_engine() as engine:
        await answer(engine, max_tokens=2)
    assert order == (["runner", "tokenizer"] if is_kept else ["tokenizer", "runner"])


class HeldEncoder:
    """Encodes once its vocabulary is there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.pieces = tokenizer.pieces
        self.is_there, self.asked = asyncio.Event(), asyncio.Semaphore(0)
        self._encoder = tokenizer.encoder

    def encode(self, text: str, *, with_control: bool) -> list[int]:
        if not self.is_there.is_set():
            raise WholeNeededError
        return self._encoder.encode(text, with_control=with_control)

    def at_once(self) -> HeldEncoder:
        return self

    async def whole(self) -> None:
        self.asked.release()
        await self.is_there.wait()

    def close(self) -> None:
        pass


async def test_prompts_that_wait_for_the_tokenizer_hold_no_threads(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(240), open_engine() as engine:
        await engine.loaded()
        expected = (await answer(engine, "the quick brown fox")).ids
        encoder = HeldEncoder(engine.tokenizer)
        tokenizer = Tokenizer(encoder, engine.tokenizer.facts)
        monkeypatch.setattr(Intake, "tokenizer", tokenizer)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waiting = [asyncio.create_task(answer(engine, "the quick brown fox")) for _ in range(8)]
        for _ in waiting:
            await encoder.asked.acquire()
        await asyncio.to_thread(lambda: None)
        encoder.is_there.set()
        assert [(await each).ids for each in waiting] == [expected] * 8


def test_a_model_that_is_not_there_is_for_others_to_complain_about(tmp_path: Path) -> None:
    TokenizerTask(tmp_path / "nothing", KeptFolder(tmp_path)).close()


async def test_an_engine_without_a_tokenizer_has_the_same_token_ids_and_no_text(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        wanted = await answer(engine, top_logprobs=2)
    async with open_engine(skip_tokenizer=True) as engine:
        found = await answer(engine, top_logprobs=2)
        with pytest.raises(ConfigError, match="skip_tokenizer"):
            await answer(engine, "text")
        with pytest.raises(ConfigError, match="skip_tokenizer"):
            await answer(engine, stop=("end",))
    assert found.ids == wanted.ids
    assert found.text == ""
    assert [[(i, p) for i, _, p in token.top_logprobs] for token in found.tokens] == [
        [(i, p) for i, _, p in token.top_logprobs] for token in wanted.tokens
    ]


@pytest.mark.parametrize("has_interpreter", [True, False])
def test_the_chat_template_has_a_process_that_ends_with_the_engine(
    tmp_path: Path, has_interpreter: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_start, "_has_interpreter", lambda: has_interpreter)
    for name in ("SHORT_SECONDS", "MAX_SECONDS", "_LATE_S"):
        monkeypatch.setattr(template_process, name, 60.0)
    messages = [ChatMessage("user", "Why?")]
    task = TokenizerTask(demo_model_dir(), None)
    task.begin(demo_model_dir())
    made = task.make().tokenizer
    text = Tokenizer.load(demo_model_dir()).chat_text(messages)
    assert made.chat_text(messages) == made.hasty().chat_text(messages) == text
    task.close()
    if has_interpreter:
        with pytest.raises(TokenizerLostError, match="chat template's process has ended"):
            made.chat_text(messages)
    broken = shutil.copytree(demo_model_dir(), tmp_path / "broken")
    (broken / "chat_template.jinja").write_text("{% for %}")
    task = TokenizerTask(broken, None)
    task.begin(broken)
    with pytest.raises(TokenizerError, match="chat template: "):
        task.make()
    task.close()


def test_a_model_without_a_chat_template_has_no_process_for_one(tmp_path: Path) -> None:
    plain = shutil.copytree(demo_model_dir(), tmp_path / "plain")
    settings = json.loads((plain / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (plain / "tokenizer_config.json").write_text(json.dumps(settings))
    task = TokenizerTask(plain, None)
    task.begin(plain)
    assert not task.make().tokenizer.has_chat_template
    assert task._templates is not None
    assert not Path(f"/proc/{task._templates.pid}").exists()
    task.close()
