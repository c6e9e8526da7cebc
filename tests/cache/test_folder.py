"""The folder of entries: written once, read as hostile, pruned, cleaned after the dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from unicorn_async.cache import draft as cache_draft
from unicorn_async.cache.container import container_chunks, container_of
from unicorn_async.cache.entry import ENTRY_FILE, TENSORS_FILE, CacheEntry
from unicorn_async.cache.folder import DEFAULT_LIMIT, CacheFolder
from unicorn_async.cache.lookup import CacheState, look_up
from unicorn_async.checkpoint.safetensors import read_header
from unicorn_async.config import WeightScheme
from unicorn_async.errors import CacheError
from unicorn_async.tensor import LAYOUT_VERSION

from .cache_files import checksum_of, key_of, plan_of, write_checkpoint, write_entry

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.cache.lookup import CacheLookup
    from unicorn_async.checkpoint.checkpoint import Checkpoint

KEYS = [f"{number:032x}" for number in range(1, 6)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return write_checkpoint(tmp_path / "model")


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(tmp_path / "cache" / "weights")


def look(folder: CacheFolder, checkpoint: Checkpoint) -> CacheLookup:
    return look_up(folder, checkpoint, plan_of(checkpoint), scheme=WeightScheme.INT8, lora_digest="")


def names_in(folder: CacheFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir())


def use(folder: CacheFolder, key: str, moment: int) -> None:
    os.utime(folder.folder_of(key) / ENTRY_FILE, (moment, moment))


def test_an_entry_is_found_with_everything_that_was_written(folder: CacheFolder, checkpoint: Checkpoint) -> None:
    assert look(folder, checkpoint).status.state is CacheState.MISS
    entry = write_entry(folder, checkpoint)
    found = look(folder, checkpoint)
    assert (found.status.state, found.entry) == (CacheState.HIT, entry)
    assert names_in(folder) == [entry.key]
    assert sorted(path.name for path in folder.folder_of(entry.key).iterdir()) == [ENTRY_FILE, TENSORS_FILE]
    assert folder.draft(entry.key) is None


def test_the_file_is_what_the_safetensors_library_reads(folder: CacheFolder, checkpoint: Checkpoint) -> None:
    entry = write_entry(folder, checkpoint)
    with safe_open(folder.folder_of(entry.key) / TENSORS_FILE, framework="numpy") as file:
        assert set(file.keys()) == set(entry.tensors)
        for name, tensor in entry.tensors.items():
            values = file.get_tensor(name)
            assert values.nbytes % 4096 == 0
            assert checksum_of(values[: tensor.nbytes].tobytes()) == tensor.checksum


def test_tensors_begin_at_pages_and_are_cut_into_chunks(folder: CacheFolder, checkpoint: Checkpoint) -> None:
    entry = write_entry(folder, checkpoint)
    header = read_header(folder.folder_of(entry.key) / TENSORS_FILE)
    chunks = container_chunks(header, plan_of(checkpoint).destinations, chunk_bytes=4096)
    assert all(tensor.offset % 4096 == 0 for tensor in header.values())
    for dest in plan_of(checkpoint).destinations:
        own = [chunk for chunk in chunks if chunk.dest == dest.name]
        assert [chunk.dest_offset for chunk in own] == list(range(0, dest.nbytes, 4096))
        assert sum(chunk.nbytes for chunk in own) == dest.nbytes
    assert [chunk.offset for chunk in chunks] == sorted(chunk.offset for chunk in chunks)


def test_switched_off_or_of_no_use_is_off(folder: CacheFolder, checkpoint: Checkpoint) -> None:
    plan = plan_of(checkpoint)
    off = look_up(None, checkpoint, plan, scheme=WeightScheme.INT8, lora_digest="")
    assert off.status.text() == "off: switched off"
    plan = plan_of(checkpoint, WeightScheme.AUTO)
    assert look_up(folder, checkpoint, plan, scheme=WeightScheme.AUTO, lora_digest="").status.state is CacheState.OFF


def overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


DAMAGE: dict[str, Any] = {
    "truncated": lambda path: os.truncate(path / TENSORS_FILE, 5000),
    "longer": lambda path: os.truncate(path / TENSORS_FILE, 1 << 20),
    "no tensors": lambda path: (path / TENSORS_FILE).unlink(),
    "tensors elsewhere": lambda path: ((path / TENSORS_FILE).rename(path / "x"), os.symlink("x", path / TENSORS_FILE)),
    "no header": lambda path: overwrite(path / TENSORS_FILE, bytes(64)),
    "no entry": lambda path: (path / ENTRY_FILE).unlink(),
    "a pipe": lambda path: ((path / ENTRY_FILE).unlink(), os.mkfifo(path / ENTRY_FILE)),
    "empty": lambda path: (path / ENTRY_FILE).write_text(""),
    "no JSON": lambda path: (path / ENTRY_FILE).write_text("{"),
    "a list": lambda path: (path / ENTRY_FILE).write_text("[]"),
    "deep": lambda path: (path / ENTRY_FILE).write_text('{"a":' * 100_000),
    "huge": lambda path: os.truncate(path / ENTRY_FILE, 1 << 40),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_entry_is_a_miss_that_says_so(how: str, folder: CacheFolder, checkpoint: Checkpoint) -> None:
    entry = write_entry(folder, checkpoint)
    DAMAGE[how](folder.folder_of(entry.key))
    found = look(folder, checkpoint)
    assert found.status.state is CacheState.MISS
    assert found.status.reason.startswith("damaged: ")
    assert found.is_damaged
    [stored] = folder.entries()
    assert stored.key == entry.key
    folder.remove(entry.key)
    assert names_in(folder) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_entry_json_says_is_an_entry_or_an_error(
    data: st.DataObject, folder: CacheFolder, checkpoint: Checkpoint
) -> None:
    key = key_of(checkpoint)
    entry = folder.find(key) if folder.path.exists() else write_entry(folder, checkpoint)
    assert entry is not None
    fields = json.loads(entry.to_json())
    for name in data.draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=3)):
        place, field = fields, name
        if name == "tensors" and isinstance(fields["tensors"], dict) and data.draw(st.booleans()):
            place, field = fields["tensors"], data.draw(st.sampled_from(["embed", "0.up", "more"]))
        place[field] = data.draw(JSON | st.dictionaries(st.text(max_size=4), JSON, max_size=3))
    try:
        parsed = CacheEntry.parse(json.dumps(fields).encode(), "test")
    except CacheError:
        return
    assert CacheEntry.parse(parsed.to_json(), "test") == parsed


@given(text=st.binary(max_size=200))
def test_whatever_bytes_entry_json_has_they_are_no_crash(text: bytes) -> None:
    with pytest.raises(CacheError):
        CacheEntry.parse(text, "test")


def test_tensors_that_are_not_the_model_s_are_damage(folder: CacheFolder, checkpoint: Checkpoint) -> None:
    destinations = plan_of(checkpoint).destinations
    write_entry(folder, checkpoint)
    header = read_header(folder.folder_of(key_of(checkpoint)) / TENSORS_FILE)
    with pytest.raises(CacheError, match=r"tensor '0\.up' is not the model's"):
        container_chunks(header, [dest for dest in destinations if dest.name != "0.up"])
    with pytest.raises(CacheError, match="tensor 'embed' is missing"):
        container_chunks({name: one for name, one in header.items() if name != "embed"}, destinations)
    with pytest.raises(CacheError, match=r"tensor 'embed': expected 8192 bytes, got 4096"):
        container_chunks({**header, "embed": header["norm"]}, destinations)


def test_the_limit_is_what_is_asked_for_or_half_of_what_could_be_free(
    folder: CacheFolder, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder.limit(123) == 123
    assert 0 < folder.limit() <= DEFAULT_LIMIT
    write_entry(folder, checkpoint)
    used = folder.used_bytes()
    monkeypatch.setattr(CacheFolder, "free_bytes", lambda self: 10_000)
    assert folder.limit() == (10_000 + used) // 2


def test_those_unused_for_longest_go_when_room_is_needed(folder: CacheFolder, checkpoint: Checkpoint) -> None:
    size = sum(
        path.stat().st_size
        for key in KEYS
        for path in folder.folder_of(write_entry(folder, checkpoint, key=key).key).iterdir()
    ) // len(KEYS)
    for moment, key in enumerate(KEYS):
        use(folder, key, 1000 + moment)
    folder.used(KEYS[0])  # now
    assert [stored.key for stored in folder.entries()] == [KEYS[0], *KEYS[:0:-1]]
    in_the_way = folder.in_the_way(folder.entries(), size, 4 * size + size // 2)
    assert len(folder.entries()) == len(KEYS)
    removed = folder.make_room(size, 4 * size + size // 2)
    assert removed == in_the_way
    assert [stored.key for stored in removed] == [KEYS[1], KEYS[2]]
    assert names_in(folder) == [KEYS[0], *KEYS[3:]]


def test_nothing_goes_for_what_would_not_fit_anyway(
    folder: CacheFolder, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_entry(folder, checkpoint)
    with pytest.raises(CacheError, match="1001 bytes needed, the cache may have 1000"):
        folder.make_room(1001, 1000)
    monkeypatch.setattr(CacheFolder, "free_bytes", lambda self: 50)
    with pytest.raises(CacheError, match=r"\d+ could be free on the disk"):
        folder.make_room(1 << 30, 1 << 40)
    assert len(folder.entries()) == 1


def test_a_full_disk_makes_old_entries_go(
    folder: CacheFolder, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_entry(folder, checkpoint)
    monkeypatch.setattr(CacheFolder, "free_bytes", lambda self: 50)
    assert len(folder.make_room(100, 1 << 40)) == 1


def test_one_process_writes_an_entry_at_a_time(folder: CacheFolder) -> None:
    draft = folder.draft(KEYS[0])
    assert draft is not None
    assert folder.draft(KEYS[0]) is None
    folder.clean()
    assert names_in(folder) == [f"{KEYS[0]}.part"]
    draft.discard()
    assert names_in(folder) == []
    again = folder.draft(KEYS[0])
    assert again is not None
    again.discard()
    again.discard()


CHILD = """
import os, sys
from pathlib import Path
from unicorn_async.cache.folder import CacheFolder
draft = CacheFolder(Path(sys.argv[1])).draft(sys.argv[2])
draft.write(memoryview(bytes(1000)), 0)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_left_is_removed(folder: CacheFolder) -> None:
    subprocess.run([sys.executable, "-c", CHILD, folder.path, KEYS[0]], check=False)
    gone = folder.path / ".removed-1234"
    gone.mkdir()
    assert names_in(folder) == [".removed-1234", f"{KEYS[0]}.part"]
    folder.clean()
    assert names_in(folder) == []


def test_a_killed_process_s_draft_is_taken_over(folder: CacheFolder, checkpoint: Checkpoint) -> None:
    subprocess.run([sys.executable, "-c", CHILD, folder.path, key_of(checkpoint)], check=False)
    entry = write_entry(folder, checkpoint)
    assert look(folder, checkpoint).entry == entry


def test_a_draft_is_not_lost_to_one_that_cleans(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder goes between its making and its locking."""
    locked, calls = cache_draft._locked, []

    def clean_first(path: Path) -> int | None:
        calls.append(path)
        if len(calls) == 1:
            assert cache_draft.draft_is_abandoned(path)
        return locked(path)

    monkeypatch.setattr(cache_draft, "_locked", clean_first)
    draft = folder.draft(KEYS[0])
    assert draft is not None
    assert len(calls) == 3
    draft.discard()


def test_two_that_finish_the_same_entry_leave_one(folder: CacheFolder, checkpoint: Checkpoint, tmp_path: Path) -> None:
    other = CacheFolder(tmp_path / "other")
    entry = write_entry(other, checkpoint)
    draft = folder.draft(entry.key)
    assert draft is not None
    other.folder_of(entry.key).rename(folder.folder_of(entry.key))
    assert not draft.commit(entry)
    assert names_in(folder) == [entry.key]


def test_links_and_strange_names_are_left_alone(folder: CacheFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    folder.path.mkdir(parents=True)
    (folder.path / "readme").write_text("not an entry")
    (folder.path / KEYS[0]).symlink_to(outside)
    (folder.path / f"{KEYS[1]}.part").symlink_to(outside)
    folder.clean()
    assert [stored.entry for stored in folder.entries()] == [None]
    folder.remove(KEYS[0])
    assert (outside / "file").read_text() == "precious"
    assert names_in(folder) == [f"{KEYS[1]}.part", "readme"]
    assert sorted(path.name for path in outside.iterdir()) == ["file"]


def test_a_folder_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="Not a directory"):
        CacheFolder(tmp_path / "file" / "weights").draft(KEYS[0])


def test_an_outdated_layout_is_of_no_use(folder: CacheFolder, checkpoint: Checkpoint) -> None:
    write_entry(folder, checkpoint, layout_version=LAYOUT_VERSION + 1)
    [stored] = folder.entries()
    assert stored.entry is not None
    assert not stored.is_usable


def test_a_container_without_tensors_is_a_page() -> None:
    assert container_of(()).nbytes == 4096
