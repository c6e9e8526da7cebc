"""Models that are brought by a thread while others read them, over sound and bad networks."""

from __future__ import annotations

import errno
import hashlib
import logging
import threading
from typing import TYPE_CHECKING

import huggingface_hub.constants
import numpy as np
import pytest

from tests.checkpoint import builders
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.hub import parse_hub_name
from unicorn_async.checkpoint.location import find_model
from unicorn_async.checkpoint.partial_file import PartialFile
from unicorn_async.errors import DownloadError, UnicornError, UnsupportedModelError
from unicorn_async.hub import download, large_file, received
from unicorn_async.hub.beginning import why_wrong
from unicorn_async.hub.cached import is_cached
from unicorn_async.hub.download import Pulled, begin_pull, pull
from unicorn_async.hub.stream import DownloadStream

from .hub_server import REVISION, HubServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from unicorn_async.checkpoint.hub import HubName

BYTES = np.random.default_rng(0).bytes(400_000)
FILE = "m-Q4_K_M.gguf"
GGUF = {FILE: b"GGUF" + BYTES}
SHA256 = hashlib.sha256(GGUF[FILE]).hexdigest()
NAMES = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


class Listener:
    """Looks at nothing, unless it has a `refusal`."""

    refusal: Exception | None = None

    def note(self, text: str) -> None:
        pass

    def check_directory(self, directory: Path) -> None:
        pass

    def check_gguf(self, name: str, nbytes: int, begun: BinaryIO, *, is_whole: bool) -> None:
        if self.refusal is not None:
            raise self.refusal


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small files are large, nobody is logged in, and nothing is waited for between attempts."""
    monkeypatch.setattr(large_file, "SMALLEST", 1000)
    monkeypatch.setattr(large_file, "HEAD_BYTES", 1000)
    monkeypatch.setattr(download, "_HEADER_BYTES", 100)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setattr(large_file, "_WAIT_S", 0)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    left = [one for one in threading.enumerate() if one.name in ("unicorn-download", "unicorn-digest")]
    for one in left:
        one.join(timeout=120)  # each was told to end, and may be about to on a busy machine
    assert not [one for one in left if one.is_alive()]


@pytest.fixture
def shards(tmp_path: Path) -> dict[str, bytes]:
    """A checkpoint in two shards."""
    tensors = {"a": builders.tensor("BF16", 100, 10)}, {"b": builders.tensor("BF16", 9, 100)}
    directory = builders.write(tmp_path / "made", *tensors, config={"x": 1})
    return {path.name: path.read_bytes() for path in directory.iterdir()} | {"tokenizer.json": b"{}"}


def named(name: str) -> HubName:
    found = parse_hub_name(name)
    assert found is not None
    return found


def environ_of(hub: HubServer, cache: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(cache)}


def begin(name: str, environ: Mapping[str, str], listener: Listener | None = None) -> DownloadStream:
    begun = begin_pull(named(name), listener or Listener(), environ)
    assert isinstance(begun, DownloadStream)
    return begun


def only_file(stream: DownloadStream) -> bytes:
    """Read a download's only file, as it comes."""
    (file,) = stream.download.files.values()
    with file.open() as opened:
        return opened.read()


def test_a_file_is_read_while_it_comes_and_is_then_in_the_cache(tmp_path: Path) -> None:
    with HubServer({"org/m-GGUF": GGUF}, cuts=[1000, 150_000, 150_000]) as hub:
        environ = environ_of(hub, tmp_path)
        stream = begin("org/m-GGUF", environ)
        assert stream.download.path == tmp_path / "models--org--m-GGUF" / "snapshots" / REVISION / FILE
        assert only_file(stream) == GGUF[FILE]
        stream.join()
        stream.close()
        assert stream.download.is_settled and is_cached(named("org/m-GGUF"), environ)
        assert find_model("org/m-GGUF", environ).read_bytes() == GGUF[FILE]
        ranges = [asked for method, path, asked in hub.asked if method == "GET" and "/resolve/" in path]
        assert ranges[0] == "bytes=0-999" and ranges[1] == "bytes=1000-" and len(ranges) == 4


def test_what_is_in_the_cache_in_the_end_is_what_the_library_puts_there(
    tmp_path: Path, shards: dict[str, bytes]
) -> None:
    with HubServer({"org/m": shards}) as hub:
        stream = begin("org/m", environ_of(hub, tmp_path / "ours"))
        stream.join()
        stream.close()
        wanted = [name for name in shards if name != "README.md"]
        huggingface_hub.snapshot_download(
            "org/m", cache_dir=tmp_path / "theirs", endpoint=hub.endpoint, allow_patterns=wanted
        )

        def content(cache: Path) -> dict[str, object]:
            folder = cache / "models--org--m"
            found = (path for part in ("blobs", "refs", "snapshots") for path in folder.joinpath(part).rglob("*"))
            return {
                str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
                for path in found
                if not path.is_dir()
            }

        assert content(tmp_path / "ours") == content(tmp_path / "theirs")


def test_the_headers_of_all_shards_come_before_the_rest_of_any(tmp_path: Path, shards: dict[str, bytes]) -> None:
    with HubServer({"org/m": shards}) as hub:
        stream = begin("org/m", environ_of(hub, tmp_path / "hub"))
        found = Checkpoint.read(stream.download.path, partial=stream.download.files)
        assert set(found.tensors) == {"a", "b"}
        stream.join()
        stream.close()
        asked = [
            (path.rpartition("/")[2], span)
            for method, path, span in hub.asked
            if method == "GET" and path.endswith(".safetensors")
        ]
        assert [span for _, span in asked if span is None or span.endswith("-")] == [span for _, span in asked[-2:]]
        assert {name for name, _ in asked[:-2]} == {NAMES[1]}  # the first one comes at once
        assert find_model("org/m", environ_of(hub, tmp_path / "hub")) == stream.download.path


def test_what_is_not_as_the_hub_lists_it_is_removed_and_told_to_who_waits_and_to_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with HubServer({"org/m-GGUF": GGUF}, sent={FILE: GGUF[FILE][:-5] + b"wrong"}) as hub:
        environ = environ_of(hub, tmp_path)
        stream = begin("org/m-GGUF", environ)
        (file,) = stream.download.files.values()
        with pytest.raises(DownloadError, match=r"org/m-GGUF: m-Q4_K_M.gguf: expected sha256 .*, got .*was removed"):
            file.wait(file.nbytes + 1)
        stream.join()
        stream.close()
        assert [record.levelno for record in caplog.records if "was removed" in record.message] == [logging.ERROR]
        assert not list(tmp_path.glob("models--org--m-GGUF/blobs/*")) and not is_cached(named("org/m-GGUF"), environ)
        hub.sent.clear()
        assert pull(named("org/m-GGUF"), Listener(), environ).path.read_bytes() == GGUF[FILE]


def test_a_size_that_is_another_one_is_told_before_the_model_is_opened(tmp_path: Path) -> None:
    refused = pytest.raises(DownloadError, match="expected 400005 bytes, the hub has 400004")
    with HubServer({"org/m-GGUF": GGUF}, listed={FILE: len(GGUF[FILE]) + 1}) as hub, refused:
        begin("org/m-GGUF", environ_of(hub, tmp_path))


def test_a_lost_connection_is_told_and_the_next_start_goes_on(tmp_path: Path) -> None:
    with HubServer({"org/m-GGUF": GGUF}, cuts=[1000, 50_000, *[0] * 20]) as hub:
        environ = environ_of(hub, tmp_path)
        stream = begin("org/m-GGUF", environ)
        with pytest.raises(DownloadError, match="what has come is kept, pull it again to go on"):
            only_file(stream)
        stream.join()
        stream.close()
        hub.cuts.clear()
        hub.asked.clear()
        again = begin("org/m-GGUF", environ)
        assert only_file(again) == GGUF[FILE]
        again.join()
        again.close()
        (span,) = (asked for method, path, asked in hub.asked if method == "GET" and "/resolve/" in path)
        assert span is not None and int(span.removeprefix("bytes=").rstrip("-")) >= 50_000


def test_a_disk_that_is_full_on_the_way_is_told_to_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = received.Received.write

    def full(self: received.Received, data: bytes) -> None:
        if self.tell() >= 50_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, data)

    monkeypatch.setattr(received.Received, "write", full)
    with HubServer({"org/m-GGUF": GGUF}) as hub:
        stream = begin("org/m-GGUF", environ_of(hub, tmp_path))
        with pytest.raises(DownloadError, match=f"org/m-GGUF: no room is left in {tmp_path}"):
            only_file(stream)
        stream.join()
        stream.close()


def test_a_download_that_is_stopped_leaves_a_part_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    write = received.Received.write

    def held(self: received.Received, data: bytes) -> None:
        if self.tell() >= 50_000:
            begun.set()
            goes_on.wait(600)
        write(self, data)

    monkeypatch.setattr(received.Received, "write", held)
    with HubServer({"org/m-GGUF": GGUF}) as hub:
        environ = environ_of(hub, tmp_path)
        stream = begin("org/m-GGUF", environ)
        assert begun.wait(120)
        for file in stream._files:
            file.stop()
        goes_on.set()
        stream.close()
        stream.join()
        with pytest.raises(DownloadError, match=r"org/m-GGUF: .*what has come is kept"):
            only_file(stream)
        (part,) = tmp_path.glob("models--org--m-GGUF/blobs/*")
        assert part.stat().st_size >= 50_000 and part.read_bytes() == GGUF[FILE][: part.stat().st_size]
        assert not is_cached(named("org/m-GGUF"), environ)
        assert pull(named("org/m-GGUF"), Listener(), environ).path.read_bytes() == GGUF[FILE]


def test_a_model_that_can_t_be_run_leaves_no_thread_and_no_lock(tmp_path: Path) -> None:
    listener = Listener()
    listener.refusal = UnsupportedModelError("of another kind")
    with HubServer({"org/m-GGUF": GGUF}) as hub:
        environ = environ_of(hub, tmp_path)
        with pytest.raises(UnsupportedModelError, match=r"^of another kind$"):
            begin("org/m-GGUF", environ, listener)
        assert pull(named("org/m-GGUF"), Listener(), environ).new_bytes == len(GGUF[FILE])


def test_two_don_t_bring_the_same_file(tmp_path: Path) -> None:
    with HubServer({"org/m-GGUF": GGUF}) as hub:
        environ = environ_of(hub, tmp_path)
        one = large_file.LargeFile(
            "http://127.0.0.1:1",
            download.RepoFile(FILE, len(GGUF[FILE]), SHA256),
            tmp_path / "models--org--m-GGUF",
            REVISION,
        )
        with one, pytest.raises(DownloadError, match="is being brought by another process"):
            begin("org/m-GGUF", environ)


def test_a_part_that_others_cut_is_told_to_who_waits_and_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = received.Received.write

    def cut(self: received.Received, data: bytes) -> None:
        write(self, data)
        if self.tell() >= 50_000:
            part.open("wb").close()

    with HubServer({"org/m-GGUF": GGUF}) as hub:
        part = tmp_path / "models--org--m-GGUF" / "blobs" / f"{SHA256}.unicorn.incomplete"
        monkeypatch.setattr(received.Received, "write", cut)
        monkeypatch.setattr(large_file, "_HASH_BYTES", len(GGUF[FILE]))  # it reads on, whatever it has read by then
        stream = begin("org/m-GGUF", environ_of(hub, tmp_path))
        (file,) = stream.download.files.values()
        with pytest.raises(UnicornError, match=rf"{part}: truncated at byte \d+ while it is downloaded"):
            file.wait(file.nbytes + 1)
        stream.join()
        stream.close()
    assert [record.levelno for record in caplog.records if "truncated at byte" in record.message] == [logging.ERROR]


@pytest.mark.parametrize("way", [begin_pull, pull])
def test_a_part_that_is_no_beginning_of_weights_is_removed(
    way: Callable[[HubName, Listener, Mapping[str, str]], object], tmp_path: Path, shards: dict[str, bytes]
) -> None:
    with HubServer({"org/m-GGUF": GGUF, "org/m": shards}) as hub:
        environ = environ_of(hub, tmp_path)
        for name, file, content in (("org/m-GGUF", FILE, GGUF[FILE]), ("org/m", NAMES[0], shards[NAMES[0]])):
            blobs = tmp_path / f"models--{name.replace('/', '--')}" / "blobs"
            blobs.mkdir(parents=True)
            part = blobs / f"{hashlib.sha256(content).hexdigest()}.unicorn.incomplete"
            part.write_bytes(bytes(500))
            with pytest.raises(DownloadError, match=rf"{name}: {file}: expected .* header begins, .* it was removed"):
                way(named(name), Listener(), environ)
            assert not part.exists()
            assert pull(named(name), Listener(), environ).path.exists()


@pytest.mark.parametrize("way", [begin_pull, pull])
def test_a_page_that_a_network_sends_in_place_of_weights_is_told_and_not_kept(
    way: Callable[[HubName, Listener, Mapping[str, str]], object],
    tmp_path: Path,
    shards: dict[str, bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    page = b"<!DOCTYPE html>"
    sent = {name: page.ljust(len(content)) for name, content in {**GGUF, **shards}.items() if name in (FILE, NAMES[0])}
    with HubServer({"org/m-GGUF": GGUF, "org/m": shards}, sent=sent) as hub:
        environ = environ_of(hub, tmp_path)
        for name in ("org/m-GGUF", "org/m"):
            with pytest.raises(DownloadError, match=rf"^{name}: m\S+: something else came .* page .* it was removed"):
                way(named(name), Listener(), environ)
            ended = [thread for thread in threading.enumerate() if thread.name == "unicorn-download"]
            for thread in ended:
                thread.join(120)
            parts = tmp_path.glob(f"models--{name.replace('/', '--')}/blobs/*incomplete")
            assert not [path for path in parts if path.read_bytes().startswith(page)]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]  # the command ends with it


def test_a_header_that_would_be_longer_than_its_file_is_no_beginning() -> None:
    assert why_wrong("m.safetensors", 100, (92).to_bytes(8, "little") + b"{") is None
    told = why_wrong("m.safetensors", 100, (93).to_bytes(8, "little") + b"{")
    assert told == "expected a header within its 100 bytes, got one of 93"
    assert why_wrong("tokenizer.json", 100, b"<html><bo") is None


def test_of_a_server_that_knows_no_ranges_a_beginning_is_not_all_of_it(tmp_path: Path) -> None:
    with HubServer({"org/m-GGUF": GGUF}, passes_over_ranges=True) as hub:
        url = f"{hub.endpoint}/org/m-GGUF/resolve/{REVISION}/{FILE}"
        with large_file.LargeFile(url, download.RepoFile(FILE, len(GGUF[FILE]), SHA256), tmp_path, REVISION) as file:
            file.receive(1000)
            assert 1000 <= file.content.num_there <= 100_000
            file.receive(150_000)
            assert 150_000 <= file.content.num_there <= 250_000
            file.settle()
        assert (tmp_path / "blobs" / SHA256).read_bytes() == GGUF[FILE]


def test_a_server_that_does_not_go_on_at_a_byte_takes_nothing_back(tmp_path: Path) -> None:
    with HubServer({"org/m-GGUF": GGUF}, cuts=[1000, 50_000], passes_over_ranges=True) as hub:
        stream = begin("org/m-GGUF", environ_of(hub, tmp_path))
        assert only_file(stream) == GGUF[FILE]
        stream.join()
        stream.close()
        assert find_model("org/m-GGUF", environ_of(hub, tmp_path)).read_bytes() == GGUF[FILE]


def test_a_model_of_small_files_is_pulled_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_file, "SMALLEST", 1 << 20)
    with HubServer({"org/m-GGUF": GGUF}) as hub:
        begun = begin_pull(named("org/m-GGUF"), Listener(), environ_of(hub, tmp_path))
        assert isinstance(begun, Pulled) and begun.path.read_bytes() == GGUF[FILE]


def test_a_file_that_another_revision_has_brought_is_only_linked(tmp_path: Path) -> None:
    with HubServer({"org/m-GGUF": GGUF}) as hub:
        environ = environ_of(hub, tmp_path)
        found = pull(named("org/m-GGUF"), Listener(), environ)
        found.path.unlink()
        hub.asked.clear()
        begun = begin_pull(named("org/m-GGUF"), Listener(), environ)
        assert isinstance(begun, Pulled) and begun.path.read_bytes() == GGUF[FILE] and hub.fetched() == []


def test_a_digest_that_ends_amid_a_file_is_no_digest_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "part"
    path.write_bytes(b"abc")
    content = PartialFile(path, 3, "0" * 64)
    monkeypatch.setattr(content, "open", lambda: (_ for _ in ()).throw(MemoryError()))
    digest = large_file._Digest(content)
    digest.start()
    with pytest.raises(MemoryError):
        digest.result()
