"""Models from a local server with the hub's endpoints, by huggingface_hub as it is, over sound and bad networks."""

from __future__ import annotations

import errno
import io
import logging
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import huggingface_hub.constants
import numpy as np
import pytest

from tests.checkpoint import builders
from unicorn_async.checkpoint.hub import parse_hub_name
from unicorn_async.checkpoint.location import find_model
from unicorn_async.errors import ConfigError, DownloadError, UnsupportedModelError
from unicorn_async.hub import large_file
from unicorn_async.hub.cached import is_cached
from unicorn_async.hub.download import Pulled, pull
from unicorn_async.hub.received import Received

from .hub_server import HubServer

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

BYTES = np.random.default_rng(0).bytes(400_000)
GGUF = {"README.md": b"# m", "m-Q4_K_M.gguf": b"GGUF" + BYTES, "m-Q8_0.gguf": b"GGUF" + BYTES[::-1]}


def shards(folder: Path) -> dict[str, bytes]:
    """A checkpoint in two shards, as a repository with more in it."""
    directory = builders.write(
        folder, {"a": builders.tensor("BF16", 100, 10)}, {"b": builders.tensor("BF16", 9, 100)}, config={"x": 1}
    )
    found = {path.name: path.read_bytes() for path in directory.iterdir()}
    return found | {"tokenizer.json": b"{}", "consolidated.safetensors": BYTES, "README.md": b"# m"}


class Puller:
    """Pulls into a cache of its own, and keeps what it was told; `refusal` is what it says of any model."""

    def __init__(self, hub: HubServer, cache: Path) -> None:
        self.environ = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(cache)}
        self.checked: list[object] = []
        self.notes: list[str] = []
        self.refusal: Exception | None = None

    def pull(self, name: str, **environ: str) -> Pulled:
        parsed = parse_hub_name(name)
        assert parsed is not None
        return pull(parsed, self, {**self.environ, **environ})

    def is_cached(self, name: str) -> bool:
        parsed = parse_hub_name(name)
        assert parsed is not None
        return is_cached(parsed, self.environ)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def check_directory(self, directory: Path) -> None:
        self._check(directory)

    def check_gguf(self, name: str, nbytes: int, begun: BinaryIO, *, is_whole: bool) -> None:
        self._check((name, nbytes, begun.read(4), is_whole))

    def _check(self, checked: object) -> None:
        self.checked.append(checked)
        if self.refusal is not None:
            raise self.refusal


@pytest.fixture(autouse=True, params=["as large files", "by the library"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small files are brought by the library alone, which keeps nothing of a call that failed."""
    if request.param == "as large files":
        monkeypatch.setattr(large_file, "SMALLEST", 1000)
    return str(request.param)


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever this machine's user is logged in as."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))


def test_a_gguf_file_is_brought_once_and_then_found(tmp_path: Path) -> None:
    with HubServer({"org/m-GGUF": GGUF}) as hub:
        puller = Puller(hub, tmp_path)
        assert not puller.is_cached("org/m-GGUF")
        found = puller.pull("org/m-GGUF")
        assert found.path.read_bytes() == GGUF["m-Q4_K_M.gguf"]
        assert found.nbytes == found.new_bytes == len(GGUF["m-Q4_K_M.gguf"])
        assert hub.fetched() == ["m-Q4_K_M.gguf"]
        assert find_model("org/m-GGUF", puller.environ) == found.path
        assert (tmp_path / "models--org--m-GGUF" / "refs" / "main").read_text() == found.path.parent.name
        assert puller.is_cached("org/m-GGUF") and puller.is_cached("org/m-GGUF:Q4_K_M")
        assert not puller.is_cached("org/m-GGUF:Q8_0")

        again = puller.pull("org/m-GGUF:q4_k_m")
        assert (again.path, again.new_bytes) == (found.path, 0)
        assert hub.fetched() == ["m-Q4_K_M.gguf"]
        other = puller.pull("org/m-GGUF:Q8_0")
        assert other.path.read_bytes() == GGUF["m-Q8_0.gguf"]
        assert find_model("org/m-GGUF:Q8_0", puller.environ) == other.path
        assert puller.notes == [
            "org/m-GGUF: 1 of 1 weight files, 0.4 MB",
            "org/m-GGUF:Q8_0: 1 of 1 weight files, 0.4 MB",
        ]


def test_of_a_directory_its_shards_come_and_no_duplicates(tmp_path: Path) -> None:
    repo = shards(tmp_path / "made")
    with HubServer({"org/m": repo}) as hub:
        puller = Puller(hub, tmp_path / "hub")
        found = puller.pull("org/m")
        assert found.path.is_dir() and find_model("org/m", puller.environ) == found.path
        assert puller.checked == [found.path]
        assert set(hub.fetched()) == repo.keys() - {"consolidated.safetensors", "README.md"}
        assert hub.fetched()[-2:] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        assert puller.is_cached("org/m")
        assert all((found.path / name).read_bytes() == repo[name] for name in hub.fetched())


def test_a_model_that_can_t_be_run_is_told_before_its_weights_come(tmp_path: Path) -> None:
    with HubServer({"org/m": shards(tmp_path / "made")}) as hub:
        puller = Puller(hub, tmp_path / "hub")
        puller.refusal = UnsupportedModelError("of another kind")
        with pytest.raises(UnsupportedModelError, match=r"^of another kind$"):
            puller.pull("org/m")
        assert not [file for file in hub.fetched() if file.endswith(".safetensors")]
        assert not puller.is_cached("org/m")


def test_of_a_gguf_file_the_beginning_is_enough_to_refuse_it(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "by the library":
        pytest.skip("huggingface_hub brings small files whole, and no beginning of one")
    monkeypatch.setattr(large_file, "HEAD_BYTES", 1000)
    with HubServer({"org/m-GGUF": GGUF}) as hub:
        puller = Puller(hub, tmp_path)
        puller.refusal = UnsupportedModelError("of another kind")
        with pytest.raises(UnsupportedModelError, match=r"^of another kind$"):
            puller.pull("org/m-GGUF")
        assert [path.stat().st_size for path in tmp_path.glob("models--org--m-GGUF/blobs/*")] == [1000]
        puller.refusal = None
        assert puller.pull("org/m-GGUF").path.read_bytes() == GGUF["m-Q4_K_M.gguf"]
        assert puller.checked == [("m-Q4_K_M.gguf", 400_004, b"GGUF", True)] * 2
        assert [asked for method, path, asked in hub.asked if method == "GET" and "/resolve/" in path] == [
            "bytes=0-999",
            "bytes=1000-",
        ]


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the library waits between its own attempts, nor do large files."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(large_file, "_WAIT_S", 0)


@pytest.mark.usefixtures("no_waits")
def test_a_connection_that_is_cut_goes_on_where_it_was(tmp_path: Path, way: str) -> None:
    with HubServer({"org/m-GGUF": GGUF}, cuts=[150_000, 150_000]) as hub:
        puller = Puller(hub, tmp_path)
        assert puller.pull("org/m-GGUF").path.read_bytes() == GGUF["m-Q4_K_M.gguf"]
        starts = [asked for method, path, asked in hub.asked if method == "GET" and path.endswith(".gguf")]
        goes_on = way == "as large files"  # the library does so from each 10 MB
        assert starts == ([None, "bytes=150000-", "bytes=300000-"] if goes_on else [None] * 3)


@pytest.mark.usefixtures("no_waits")
def test_a_connection_that_is_cut_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    again = io.StringIO()
    logging.getLogger("huggingface_hub").addHandler(logging.StreamHandler(again))  # as the library does at its import
    with HubServer({"org/m-GGUF": GGUF}, cuts=[150_000]) as hub:
        Puller(hub, tmp_path).pull("org/m-GGUF")
    assert len([record for record in caplog.records if "peer closed" in record.message]) == 1
    assert again.getvalue() == ""


@pytest.mark.usefixtures("no_waits")
def test_a_store_s_address_that_is_no_longer_good_is_asked_for_again(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "by the library":
        pytest.skip("huggingface_hub gives up where an address is no longer good")
    monkeypatch.setenv("HF_TOKEN", "secret")
    with HubServer({"org/m-GGUF": GGUF}, cuts=[150_000, 150_000], store=True, token="secret") as hub:
        assert Puller(hub, tmp_path).pull("org/m-GGUF").path.read_bytes() == GGUF["m-Q4_K_M.gguf"]
        assert [path.split("/")[2] for _, path, _ in hub.asked if path.startswith("/store/")] == [
            "2",
            "1",
            "0",
        ]


@pytest.mark.usefixtures("no_waits")
def test_what_came_before_a_connection_was_lost_is_kept(tmp_path: Path, way: str) -> None:
    with HubServer({"org/m-GGUF": GGUF}, cuts=[50_000, *[0] * 20]) as hub:
        puller = Puller(hub, tmp_path)
        with pytest.raises(DownloadError, match="what has come is kept, pull it again to go on"):
            puller.pull("org/m-GGUF")
        assert not puller.is_cached("org/m-GGUF")
        hub.cuts.clear()
        assert puller.pull("org/m-GGUF").path.read_bytes() == GGUF["m-Q4_K_M.gguf"]
        asked = hub.asked[-1][2]
        assert way == "by the library" or asked == "bytes=50000-"


@pytest.mark.usefixtures("no_waits")
def test_every_pull_over_a_link_that_is_cut_early_gets_further(
    tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    if way == "by the library":
        pytest.skip("huggingface_hub keeps nothing of a call that failed")
    with HubServer({"org/m-GGUF": GGUF}) as hub:
        puller = Puller(hub, tmp_path)
        for num_pulls in (1, 2):
            hub.cuts[:] = [150_000, *[0] * 20]
            caplog.clear()
            with pytest.raises(DownloadError, match="what has come is kept, pull it again to go on"):
                puller.pull("org/m-GGUF")
            (part,) = tmp_path.glob("models--org--m-GGUF/blobs/*")
            assert part.read_bytes() == GGUF["m-Q4_K_M.gguf"][: num_pulls * 150_000]
            assert [record.name for record in caplog.records] == ["unicorn_async.hub.large_file"] * 5
        hub.cuts.clear()
        assert puller.pull("org/m-GGUF").path.read_bytes() == GGUF["m-Q4_K_M.gguf"]


@pytest.mark.parametrize("change", ["listed", "shorter", "other bytes"])
def test_what_is_not_as_the_hub_lists_it_is_not_kept(change: str, tmp_path: Path) -> None:
    file = "m-Q4_K_M.gguf"
    with HubServer({"org/m-GGUF": GGUF}) as hub:
        if change == "listed":
            hub.listed[file] = len(GGUF[file]) + 1
        else:
            hub.sent[file] = GGUF[file][:-5] if change == "shorter" else GGUF[file][:-5] + b"wrong"
        puller = Puller(hub, tmp_path)
        words = {
            "listed": "expected 400005 bytes",
            "shorter": "400004|size",
            "other bytes": "expected .*sha256 .*, got .*; it was removed, pull it again",
        }
        with pytest.raises(DownloadError, match=words[change]):
            puller.pull("org/m-GGUF")
        assert not puller.is_cached("org/m-GGUF")
        hub.listed.clear()
        hub.sent.clear()
        assert puller.pull("org/m-GGUF").path.read_bytes() == GGUF[file]


def test_a_disk_without_room_is_told_before_anything_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=200_000))
    with HubServer({"org/m-GGUF": GGUF}) as hub:
        with pytest.raises(ConfigError, match=r"0\.4 MB have to be downloaded, 0\.2 MB are free in "):
            Puller(hub, tmp_path).pull("org/m-GGUF")
        assert hub.fetched() == []


def test_a_disk_that_is_full_on_the_way_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)
    monkeypatch.setattr(Received, "write", full)
    with HubServer({"org/m-GGUF": GGUF}) as hub, pytest.raises(DownloadError, match=f"no room is left in {tmp_path}"):
        Puller(hub, tmp_path).pull("org/m-GGUF")


@pytest.mark.parametrize(
    ("settings", "name", "message"),
    [
        ({}, "org/other", "no such repository at http://127"),
        ({"token": "secret"}, "org/m-GGUF", "or a private one: for those log in with `hf auth login`, or set HF_TOKEN"),
        ({"gated": True}, "org/m-GGUF", "access has to be asked for at http://127.0.0.1:[0-9]+/org/m-GGUF"),
    ],
)
def test_what_the_hub_refuses_is_told(settings: dict[str, Any], name: str, message: str, tmp_path: Path) -> None:
    with HubServer({"org/m-GGUF": GGUF}, **settings) as hub, pytest.raises(DownloadError, match=message):
        Puller(hub, tmp_path).pull(name)


def test_a_token_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    with HubServer({"org/m-GGUF": GGUF}, token="secret") as hub:
        assert Puller(hub, tmp_path).pull("org/m-GGUF").path.is_file()


def test_a_machine_without_a_network_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HubServer({}) as hub:
        puller = Puller(hub, tmp_path)
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(DownloadError, match=r"http://127.0.0.1:\d+ can't be reached \(ConnectError"):
        puller.pull("org/m-GGUF")
    with pytest.raises(DownloadError, match="nothing is downloaded while HF_HUB_OFFLINE is set to 1"):
        puller.pull("org/m-GGUF", HF_HUB_OFFLINE="1")
    assert waits == []


def test_without_the_library_its_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("huggingface_hub", "huggingface_hub.constants"):
        monkeypatch.setitem(sys.modules, module, None)
    with HubServer({}) as hub, pytest.raises(ConfigError, match=r"pip install 'unicorn-async\[hub\]'"):
        Puller(hub, tmp_path).pull("org/m-GGUF")


def test_a_newer_revision_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    older = tmp_path / "models--org--m-GGUF" / "snapshots" / "abc"
    older.mkdir(parents=True)
    (older / "m-Q4_K_M.gguf").write_bytes(b"GGUF")
    refs = older.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    with HubServer({"org/m-GGUF": GGUF}) as hub:
        puller = Puller(hub, tmp_path)
        found = puller.pull("org/m-GGUF")
        assert found.path.parent != older
        assert find_model("org/m-GGUF", puller.environ) == found.path
