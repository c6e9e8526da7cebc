"""Headers of safetensors files, most of them hostile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from unicorn_async.checkpoint.safetensors import parse_header, read_header
from unicorn_async.errors import CheckpointError

from . import builders

if TYPE_CHECKING:
    from pathlib import Path


def one(dtype: object = "F32", shape: object = (2, 2), offsets: object = (0, 16), **more: object) -> dict[str, object]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}


def read(tmp_path: Path, content: bytes) -> object:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    return read_header(path)


def test_a_file_of_the_library_is_read_with_absolute_offsets(tmp_path: Path) -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.float16), "e": np.empty(0)}
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, {"format": "pt"})
    entries = read_header(path)
    assert entries.keys() == tensors.keys()
    content = path.read_bytes()
    for name, array in tensors.items():
        entry = entries[name]
        assert entry.shape == array.shape
        assert content[entry.offset : entry.offset + entry.nbytes] == array.tobytes()


def test_scalars_and_empty_tensors_are_fine(tmp_path: Path) -> None:
    tensors = {"scalar": ("I64", (), b"12345678"), "empty": ("BF16", (0, 7), b"")}
    assert [entry.nbytes for entry in read(tmp_path, builders.file_bytes(tensors)).values()] == [8, 0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (b"\0" * 7, "too short"),
        (b"\xff" * 100, "at most 16777216 are allowed"),
        (((16 << 20) + 1).to_bytes(8, "little") + b"{}", "at most 16777216 are allowed"),
        ((3).to_bytes(8, "little") + b"{}", "in a file of 10 bytes"),
        (builders.with_header(b""), "begins with"),
        (builders.with_header(b" {}"), "begins with"),
        (builders.with_header(b"[]"), "begins with"),
        (builders.with_header(b"{"), "not valid JSON"),
        (builders.with_header(b'{"a\xff": 1}'), "not UTF-8"),
        (builders.with_header(b'{"a":' + b"[" * 200_000), "not valid JSON"),
        (builders.with_header(b'{"a": ' + b"9" * 5000 + b"}"), "not valid JSON"),
        (
            builders.with_header(b'{"t": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "t": 1}'),
            "'t' appears twice",
        ),
        (builders.with_header(b'{"t": {"dtype": "F32", "dtype": "F16"}}'), "'dtype' appears twice"),
        (builders.with_header(b'{"__metadata__": {"a": 1}}'), "__metadata__"),
        (builders.with_header(b'{"__metadata__": []}'), "__metadata__"),
    ],
)
def test_a_damaged_header_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"t": 1}, "expected an object"),
        ({"t": {}}, "expected an object"),
        (one(extra=1), "expected an object"),
        (one(dtype="F33"), "unknown dtype 'F33'"),
        (one(dtype=32), "unknown dtype 32"),
        (one(dtype=["F32"]), "unknown dtype"),
        (one(shape=4), "shape"),
        (one(shape=[-2, -2]), "shape"),
        (one(shape=[2.0, 2.0]), "shape"),
        (one(shape=[True, 4]), "shape"),
        (one(shape=[1 << 70]), "shape"),
        (one(shape=[2, 3]), r"F32 of shape \[2, 3\] does not have 16 bytes"),
        (one(shape=[1 << 62, 1 << 62, 1 << 62]), "does not have 16 bytes"),
        (one(shape=[1 << 62] * 64), "does not have 16 bytes"),
        (one(shape=[1] * 65), "65 sizes, at most 64"),
        (one(shape=[1 << 62] * 5000), "in 4096 characters"),
        (one(dtype="F4", shape=[33]), "does not have 16 bytes"),
        (one(offsets=[0, 17]), "does not have 17 bytes"),
        (one(offsets=[16, 0]), "data_offsets"),
        (one(offsets=[-16, 0]), "data_offsets"),
        (one(offsets=[0]), "data_offsets"),
        (one(offsets=[0, 8, 16]), "data_offsets"),
        (one(offsets=[0, 1 << 64]), "data_offsets"),
        (one(offsets=[4, 20]), "hole"),
        (one() | {"u": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}}, "overlaps 't'"),
        (one() | {"u": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, "overlaps"),
        (one() | {"u": {"dtype": "F32", "shape": [1], "data_offsets": [24, 28]}}, "hole"),
        (one() | {"u": {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]}}, "truncated"),
        (one(shape=[1 << 40], offsets=[0, 1 << 42]), "truncated"),
        ({}, "16 bytes after the last tensor"),
    ],
)
def test_a_header_that_contradicts_itself_or_the_file_is_an_error(
    tmp_path: Path, header: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, builders.with_header(json.dumps(header).encode(), bytes(16)))


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    content = builders.file_bytes({"t": builders.tensor("BF16", 8, 8)})
    for length in (len(content) - 1, len(content) - 128, 20, 8, 3):
        with pytest.raises(CheckpointError):
            read(tmp_path, content[:length])


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        read_header(tmp_path / "model.safetensors")


@given(st.binary(max_size=200))
def test_no_header_breaks_the_parser(junk: bytes) -> None:
    for header in (junk, b"{" + junk, b'{"t":' + junk):
        with pytest.raises(CheckpointError):
            parse_header(header, 8 + len(header) + 1, source="junk")
