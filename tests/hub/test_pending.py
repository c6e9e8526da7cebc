"""Downloads that begin beside a server that listens already: how far they are, and how they end."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from typing import TYPE_CHECKING

import pytest

from unicorn_async.checkpoint.checkpoint import INDEX_FILE, SINGLE_FILE
from unicorn_async.checkpoint.coming_model import DownloadCount
from unicorn_async.errors import DownloadError, UnsupportedModelError
from unicorn_async.hub import large_file, pending, received
from unicorn_async.hub.cached import is_cached
from unicorn_async.hub.pending import PendingPull
from unicorn_async.hub.repository import Repository
from unicorn_async.lora_spec import ADAPTER_CONFIG_FILE, ADAPTER_TENSORS_FILE

from .hub_server import HubServer
from .test_stream import FILE, GGUF, Listener, alone, environ_of, named, no_thread_left

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unicorn_async.hub.needed import RepoFile

__all__ = ["alone", "no_thread_left"]
PART = 300  # bytes
WEIGHTS = (2).to_bytes(8, "little") + b"{}" + bytes(5000)


class Held:
    """Holds what comes of large files behind their first bytes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.go_on, self.is_held = threading.Event(), threading.Event()
        write = received.Received.write

        def held(one: received.Received, data: bytes) -> None:
            for start in range(0, len(data), PART):
                if one.tell():
                    self.is_held.set()
                    self.go_on.wait(600)
                write(one, data[start : start + PART])

        patch.setattr(received.Received, "write", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    found = Held(monkeypatch)
    yield found
    found.go_on.set()


def parts_in(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.glob("models--org--m/blobs/*incomplete")]


async def test_what_has_come_is_counted_until_the_model_can_be_opened(tmp_path: Path, held: Held) -> None:
    counts: list[DownloadCount] = []
    with HubServer({"org/m": GGUF}) as hub:
        pulled = PendingPull("org/m", named("org/m"), Listener(), environ_of(hub, tmp_path))

        def on_count(count: DownloadCount) -> None:
            counts.append(count)
            if count.bytes_downloaded:
                held.go_on.set()

        await pulled.coming.begun(on_count)
        assert counts[-1] == DownloadCount(len(GGUF[FILE]), PART)
        download = pulled.coming.wait()
        assert download is not None
        (file,) = download.files.values()
        assert file.num_there >= large_file.HEAD_BYTES
        await file.settled()
        await asyncio.to_thread(pulled.close)
    assert is_cached(named("org/m"), environ_of(hub, tmp_path))


def test_one_that_is_closed_before_that_keeps_what_has_come(
    tmp_path: Path, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "_END_S", 0.01)
    with HubServer({"org/m": GGUF}) as hub:
        pulled = PendingPull("org/m", named("org/m"), Listener(), environ_of(hub, tmp_path))
        assert held.is_held.wait(120)
        pulled.close()
        with pytest.raises(DownloadError, match="org/m: the download was stopped; what has come is kept"):
            pulled.coming.wait()
        held.go_on.set()
        pulled._thread.join(120)
        assert parts_in(tmp_path) == [PART]
        hub.asked.clear()
        again = PendingPull("org/m", named("org/m"), Listener(), environ_of(hub, tmp_path))
        assert again.coming.wait() is not None
        assert next(span for method, _, span in hub.asked if method == "GET" and span).startswith(f"bytes={PART}-")
        again.close()


def test_one_that_is_closed_before_the_hub_answers_brings_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "_END_S", 0.01)
    answers, files = threading.Event(), Repository.files
    monkeypatch.setattr(Repository, "files", lambda hub: answers.wait(120) and files(hub))
    with HubServer({"org/m": GGUF}) as hub:
        pulled = PendingPull("org/m", named("org/m"), Listener(), environ_of(hub, tmp_path))
        pulled.close()
        answers.set()
        pulled._thread.join(120)
    assert hub.fetched() == [] and parts_in(tmp_path) == []


@pytest.mark.parametrize("refusal", [None, UnsupportedModelError("of another kind")])
def test_what_refuses_the_model_is_told_to_who_waits(refusal: Exception | None, tmp_path: Path) -> None:
    listener = Listener()
    listener.refusal = refusal
    with HubServer({"org/m": GGUF}) as hub:
        name = named("org/none" if refusal is None else "org/m")
        pulled = PendingPull(str(name), name, listener, environ_of(hub, tmp_path))
        with pytest.raises(DownloadError if refusal is None else UnsupportedModelError):
            pulled.coming.wait()
        pulled.close()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == pending.__name__]


@pytest.mark.parametrize("is_left_first", [False, True])
def test_what_ends_it_is_logged_once_and_only_where_nobody_else_tells(
    is_left_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = Repository.files
    with HubServer({}) as hub:
        for is_left in (False, True):
            answers = threading.Event()
            monkeypatch.setattr(Repository, "files", lambda hub, go_on=answers: go_on.wait(120) and files(hub))
            pulled = PendingPull("org/m", named("org/m"), Listener(), environ_of(hub, tmp_path))
            if is_left and is_left_first:
                pulled.log_failures()
            answers.set()
            with pytest.raises(DownloadError, match="no such repository"):
                pulled.coming.wait()
            pulled._thread.join(120)
            if is_left and not is_left_first:
                pulled.log_failures()
            pulled.close()
            assert len(warnings_of(caplog)) == is_left
    assert warnings_of(caplog)[0].startswith("org/m: no such repository")


def test_one_that_has_failed_begins_anew_unless_all_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with HubServer({}) as hub:
        pulled = PendingPull("org/m", named("org/m"), Listener(), environ_of(hub, tmp_path))
        for _ in range(2):
            with pytest.raises(DownloadError, match="no such repository"):
                pulled.coming.wait()
            pulled._thread.join(120)
            assert pulled.coming.has_failed
            assert pulled.again() is pulled.coming
        with pytest.raises(DownloadError, match="no such repository"):
            pulled.coming.wait()
        assert len(warnings_of(caplog)) <= 2, "the first one's was told by who waited"
        hub.repos["org/m"] = GGUF
        coming = pulled.again()
        assert coming is not None and coming.wait() is not None
        assert pulled._stream is not None
        pulled._stream.join()
        assert not coming.has_failed
        hub.repos.clear()
        assert pulled.again() is None
        pulled.close()
        with pytest.raises(DownloadError, match="the download was stopped"):
            pulled.again()


def test_one_that_fails_after_the_model_was_opened_begins_anew(tmp_path: Path) -> None:
    with HubServer({"org/m": GGUF}, cuts=[1000, 50_000, *[0] * 20]) as hub:
        pulled = PendingPull("org/m", named("org/m"), Listener(), environ_of(hub, tmp_path))
        assert pulled.coming.wait() is not None and pulled._stream is not None
        pulled._stream.join()
        assert pulled.coming.has_failed
        hub.cuts.clear()
        coming = pulled.again()
        assert coming is not None and coming.wait() is not None and pulled._stream is not None
        pulled._stream.join()
        assert not coming.has_failed
        pulled.close()
    assert is_cached(named("org/m"), environ_of(hub, tmp_path))


@pytest.mark.parametrize("indexed", [False, True])
def test_weights_count_before_small_files_come_and_the_model_is_not_there_before_its_header(
    indexed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then nobody can be told that it is being opened."""
    counts: list[DownloadCount] = []
    asked, answers, fetched = threading.Event(), threading.Event(), threading.Event()
    write, fetch = received.Received.write, Repository._fetch
    pulls: list[PendingPull] = []

    def held(one: received.Received, data: bytes) -> None:
        asked.set()
        assert answers.wait(120)
        write(one, data)

    def counted(one: Repository, revision: str, file: RepoFile) -> None:
        fetch(one, revision, file)
        assert fetched.wait(120)
        counts.append(pulls[0]._arrivals.count())

    monkeypatch.setattr(received.Received, "write", held)
    monkeypatch.setattr(Repository, "_fetch", counted)
    files = {"config.json": b"{}", "tokenizer.json": b"{}", SINGLE_FILE: WEIGHTS}
    if indexed:
        files = {"config.json": b"{}", "tokenizer.json": b"{}", "weights.safetensors": WEIGHTS}
        files[INDEX_FILE] = b'{"weight_map": {"a": "weights.safetensors"}}'
    with HubServer({"org/m": files}) as hub:
        pulls.append(PendingPull("org/m", named("org/m"), Listener(), environ_of(hub, tmp_path)))
        fetched.set()
        assert asked.wait(120)
        is_begun = pulls[0].coming.is_begun
        answers.set()
        assert pulls[0].coming.wait() is not None
        pulls[0].close()
        assert not is_begun
        nbytes = sum(map(len, files.values()))
        assert {count.bytes_to_download for count in counts} <= {0, nbytes} and counts[-1].bytes_to_download == nbytes
        assert all(count.bytes_downloaded < count.bytes_to_download for count in counts if count.bytes_to_download)


def test_a_large_file_of_an_adapter_counts_once(tmp_path: Path) -> None:
    files = {ADAPTER_CONFIG_FILE: b"{}", ADAPTER_TENSORS_FILE: WEIGHTS}
    with HubServer({"org/m": files}) as hub:
        (part := tmp_path / "models--org--m" / "blobs").mkdir(parents=True)
        (part / f"{hashlib.sha256(WEIGHTS).hexdigest()}.unicorn.incomplete").write_bytes(WEIGHTS[:1000])
        pulled = PendingPull("org/m", named("org/m"), Listener(), environ_of(hub, tmp_path))
        assert pulled.coming.wait() is None
        pulled.close()
    assert pulled._arrivals.count() == DownloadCount(len(WEIGHTS) + 2, len(WEIGHTS) + 2)


def test_a_cache_that_can_t_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with HubServer({"org/m": GGUF}) as hub:
        pulled = PendingPull("org/m", named("org/m"), Listener(), environ_of(hub, tmp_path / "file" / "hub"))
        with pytest.raises(DownloadError, match=r"^org/m: nothing can be written in .*hub \(Not a directory\)$"):
            pulled.coming.wait()
        pulled.close()


def test_no_file_that_comes_leaves_a_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "tokenizer_config.json": b"{}", SINGLE_FILE: WEIGHTS}
    with HubServer({"org/m": files}) as hub:
        pulled = PendingPull("org/m", named("org/m"), Listener(), environ_of(hub, tmp_path))
        assert pulled.coming.wait() is not None
        assert pulled._stream is not None
        pulled._stream.join()
        pulled.close()
        left = [thread.name for thread in set(threading.enumerate()) - before]
    assert not [name for name in left if "tqdm" in name.lower() or "monitor" in name.lower()], left


def test_small_files_alone_are_all_there_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_file, "SMALLEST", 1 << 30)
    with HubServer({"org/m": GGUF}) as hub:
        pulled = PendingPull("org/m", named("org/m"), Listener(), environ_of(hub, tmp_path))
        assert pulled.coming.wait() is None
        pulled.close()
    assert pulled._arrivals.count() == DownloadCount(len(GGUF[FILE]), len(GGUF[FILE]))
