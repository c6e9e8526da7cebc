"""Files of many megabytes, made to cost their readers as much as can be: refused early, or read in proportion."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest

from tests.checkpoint.builders import with_header
from tests.checkpoint.gguf.builders import text
from unicorn_async.checkpoint import checkpoint, safetensors, strict_json
from unicorn_async.checkpoint.gguf import fields, header
from unicorn_async.errors import CheckpointError

from .targets import Target, check, make_targets

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return make_targets(tmp_path_factory.mktemp("fuzz"))


def tensors(count: int) -> bytes:
    """A file of tensors of one byte, with names as short as can be but for one."""
    described = (
        f'"{index:x}":{{"dtype":"U8","shape":[1],"data_offsets":[{index},{index + 1}]}}' for index in range(count - 1)
    )
    last = f'"🦄":{{"dtype":"U8","shape":[1],"data_offsets":[{count - 1},{count}]}}'
    return with_header(f"{{{','.join((*described, last))}}}".encode(), bytes(count))


def filled(front: bytes, piece: bytes, back: bytes, size: int) -> bytes:
    return front + piece * ((size - len(front) - len(back)) // len(piece)) + back


def index(count: int) -> bytes:
    entries = ",".join(f'"{number:x}":"{number:x}.safetensors"' for number in range(count))
    return f'{{"weight_map":{{{entries}}}}}'.encode()


def keys(count: int) -> bytes:
    """An object with as many members as that."""
    return json.dumps({f"{number:x}": 0 for number in range(count)}, separators=(",", ":")).encode()


def gguf(num_tensors: int, num_keys: int, content: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_keys) + content


def gguf_keys(count: int) -> bytes:
    return gguf(0, count, b"".join(text(f"{number:x}") + struct.pack("<IB", 0, 1) for number in range(count)))


def gguf_tensors(count: int) -> bytes:
    records = (text(f"{number:x}") + struct.pack("<IQIQ", 1, 8, 0, 32 * number) for number in range(count))
    return gguf(count, 0, b"".join(records) + bytes(32 * (count + 1)))


def gguf_strings(num_arrays: int, count: int) -> bytes:
    """Arrays of strings that are not read at once, since they have NULs."""
    arrays = (
        text(f"{number:x}") + struct.pack("<IIQ", 9, 8, count) + text("\0a") * count for number in range(num_arrays)
    )
    return gguf(0, num_arrays, b"".join(arrays))


HEADER, FILE = safetensors.MAX_HEADER_BYTES, strict_json.MAX_FILE_BYTES
TOO_MANY: dict[str, tuple[str, Callable[[], bytes]]] = {
    "too many tensors": ("safetensors", lambda: tensors(safetensors.MAX_TENSORS + 1)),
    "an index of too many": ("index", lambda: index(checkpoint.MAX_INDEX_TENSORS + 1)),
}
LARGE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "tensors": ("safetensors", lambda: tensors(1 << 15)),
    "empty arrays": ("safetensors", lambda: with_header(filled(b'{"a":[', b"[],", b"[]]}", HEADER))),
    "open arrays": ("safetensors", lambda: with_header(filled(b'{"a":', b"[", b"", HEADER))),
    "metadata": ("safetensors", lambda: with_header(filled(b'{"__metadata__":{', b'"a":"",', b'"":""}}', HEADER))),
    "a long string": ("safetensors", lambda: with_header(filled(b'{"__metadata__":{"a":"', b"x", b'"}}', HEADER))),
    "a long name": ("safetensors", lambda: with_header(filled(b'{"', b"x", b'":1}', HEADER))),
    "an adapter's empty arrays": ("adapter_tensors", lambda: with_header(filled(b'{"a":[', b"[],", b"[]]}", HEADER))),
    "an index": ("index", lambda: index(1 << 15)),
    "an index with more keys": ("index", lambda: keys(1 << 18)),
    "an index's long name": ("index", lambda: filled(b'{"weight_map":{"', b"x", b'":1}}', FILE)),
    "a configuration": ("config", lambda: keys(strict_json.MAX_MARKS // 2)),
    "a configuration of arrays": ("config", lambda: filled(b'{"a":[', b"[],", b"[]]}", FILE)),
    "a configuration that is too large": ("config", lambda: filled(b'{"a":"', b"x", b'"}', FILE + 1)),
    "an adapter's configuration": ("adapter_config", lambda: filled(b'{"a":[', b"{},", b"{}]}", FILE)),
    "an adapter's configuration that is too large": ("adapter_config", lambda: bytes(FILE + 1)),
    "a cache entry": ("cache_entry", lambda: filled(b'{"a":[', b"{},", b"{}]}", FILE)),
    "a tokenizer's configuration": ("tokenizer_config", lambda: filled(b'{"a":[', b"{},", b"{}]}", 1 << 20)),
    "a tokenizer's configuration that is too large": ("tokenizer_config", lambda: bytes(FILE + 1)),
    "GGUF keys": ("gguf", lambda: gguf_keys(header.MAX_KEYS)),
    "too many GGUF keys": ("gguf", lambda: gguf_keys(header.MAX_KEYS + 1)),
    "GGUF tensors": ("gguf", lambda: gguf_tensors(1 << 15)),
    "too many GGUF tensors": ("gguf", lambda: gguf_tensors(header.MAX_TENSORS + 1)),
    "GGUF strings": ("gguf", lambda: gguf_strings(1, 1 << 18)),
    "GGUF strings in many arrays": ("gguf", lambda: gguf_strings(33, 4096)),
}
SAID = {
    "too many tensors": "more than 131072 tensors",
    "empty arrays": "in 4096 characters",
    "metadata": "more than 16384 keys",
    "a long name": "a name of 16777210 characters, at most 256",
    "an index's long name": r"a name of \d+ characters, at most 256",
    "an index of too many": "more than 262144 tensors",
    "an index with more keys": "more than 64 keys beside weight_map",
    "a configuration of arrays": "commas, colons and brackets, at most 131072 are allowed",
    "a configuration that is too large": "16777217 bytes, a model's JSON file has 16777216 at most",
    "an adapter's configuration that is too large": "16777217 bytes, a model's JSON file has 16777216 at most",
    "too many GGUF keys": "the number of metadata keys: 65537, at most 65536 are allowed",
    "too many GGUF tensors": "the number of tensors: 65537, at most 65536 are allowed",
}
NAMED = pytest.mark.whole("that what is refused, by a limit that is named, is refused soon, too")
OTHERS = pytest.mark.whole(
    "that large files of each kind take no more than their size; small ones of all kinds do so always"
)


def _marks(case: str) -> tuple[pytest.MarkDecorator, ...]:
    if case in SAID:
        return (NAMED,)
    return () if case == next(name for name in LARGE if name not in SAID) else (OTHERS,)


@pytest.mark.parametrize("case", [pytest.param(case, marks=_marks(case)) for case in LARGE])
def test_a_large_file_is_refused_or_read_in_proportion_to_its_size(
    case: str, targets: dict[str, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, make = LARGE[case]
    if case == "GGUF strings in many arrays":
        monkeypatch.setattr(fields, "MAX_STRINGS", 32 * 4096)
    data = make()
    assert len(data) > 1 << 19
    check(targets[name], data)


@pytest.mark.parametrize("case", SAID)
def test_the_limit_that_a_large_file_exceeds_is_named(case: str, targets: dict[str, Target]) -> None:
    name, make = (LARGE | TOO_MANY)[case]
    with pytest.raises(CheckpointError, match=SAID[case]):
        targets[name].read(make())
