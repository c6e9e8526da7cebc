"""Headers of GGUF files: what is read, and what is refused before anything is allocated."""

from __future__ import annotations

import io
import struct
import tracemalloc
from array import array as array_of
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicorn_async.checkpoint.gguf.ggml_types import GGML_TYPES
from unicorn_async.checkpoint.gguf.header import GgufHeader, parse_header, read_header
from unicorn_async.errors import CheckpointError, UnsupportedModelError

from .builders import U32, File, Tensor, array, text

if TYPE_CHECKING:
    from pathlib import Path

ZEROS = array("F32", np.zeros((2, 3), np.float32))
METADATA = {
    "general.architecture": "llama",
    "a.flag": True,
    "a.list": ["x", "ü", ""],
    "a.numbers": [1.5, 2.0],
    "a.n": 7,
}
SOUND = File(METADATA, {"one": ZEROS, "two": array("F16", np.ones((4, 8), np.float32))}).encode()


def parse(data: bytes) -> GgufHeader:
    return parse_header(io.BytesIO(data), len(data), source="m.gguf")


def header(num_tensors: int = 0, num_keys: int = 0, *, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_keys)


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensors_are_read(version: int, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(File(METADATA, {"one": ZEROS}, version).encode())
    found = read_header(tmp_path / "m.gguf")
    assert found.metadata == {**METADATA, "a.list": ("x", "ü", ""), "a.numbers": array_of("f", [1.5, 2.0])}
    entry = found.tensors["one"]
    assert (entry.dtype, entry.shape, entry.nbytes) == ("F32", (2, 3), 24)
    assert entry.offset % 32 == 0
    assert entry.offset + 32 == (tmp_path / "m.gguf").stat().st_size


def test_a_file_may_choose_its_alignment() -> None:
    file = File({}, {"one": ZEROS, "two": ZEROS}, alignment=128)
    offsets = [entry.offset for entry in parse(file.encode()).tensors.values()]
    assert offsets[1] - offsets[0] == 128
    assert offsets[0] % 128 == 0


@pytest.mark.parametrize(
    ("kind", "elements", "nbytes"),
    [
        ("F32", 1, 4),
        ("F16", 1, 2),
        ("BF16", 1, 2),
        ("Q8_0", 32, 34),
        ("Q4_0", 32, 18),
        ("Q4_1", 32, 20),
        ("Q5_0", 32, 22),
        ("Q5_1", 32, 24),
        ("IQ4_NL", 32, 18),
        ("Q2_K", 256, 84),
        ("Q3_K", 256, 110),
        ("IQ1_S", 256, 50),
        ("IQ1_M", 256, 56),
        ("IQ2_XXS", 256, 66),
        ("IQ2_XS", 256, 74),
        ("IQ2_S", 256, 82),
        ("IQ3_XXS", 256, 98),
        ("IQ3_S", 256, 110),
        ("Q4_K", 256, 144),
        ("Q5_K", 256, 176),
        ("Q6_K", 256, 210),
        ("IQ4_XS", 256, 136),
        ("MXFP4", 32, 17),
        ("Q4_0_4_4", 32, 18),
        ("IQ4_NL_8_8", 32, 18),
        ("Q2_0", 64, 18),
    ],
)
def test_a_tensor_has_the_bytes_of_its_blocks(kind: str, elements: int, nbytes: int) -> None:
    number = next(number for number, known in GGML_TYPES.items() if known.name == kind)
    file = File({}, {"t": Tensor(number, (5, 3 * elements), bytes(15 * nbytes))})
    entry = parse(file.encode()).tensors["t"]
    assert (entry.dtype, entry.shape, entry.nbytes) == (kind, (5, 3 * elements), 15 * nbytes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the magic of 4 bytes"),
        (header(magic=b"GGML"), "begins with b'GGML'"),
        (header(version=1), "GGUF version 1 is not supported, only 2 and 3"),
        (header(version=4), "version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(1 << 62), "the number of tensors: 4611686018427387904, but 8 bytes"),
        (header(0, 1 << 62), "the number of metadata keys"),
        (header(0, 1) + struct.pack("<Q", 1 << 40) + bytes(20), "a metadata key of 1099511627776 bytes"),
        (header(0, 1) + text("key") + struct.pack("<IQ", 8, 1 << 40), "'key' of 1099511627776 bytes"),
        (header(0, 1) + text("key") + struct.pack("<IIQ", 9, 4, 1 << 40), "elements of 'key': 1099511627776"),
        (header(0, 1) + text("key") + struct.pack("<IIQ", 9, 8, 1 << 40), "elements of 'key': 1099511627776"),
        (header(0, 1) + text("key") + struct.pack("<IIQ", 9, 9, 1) + bytes(20), "an array inside an array"),
        (header(0, 1) + text("key") + struct.pack("<I", 99) + bytes(20), "'key' has type 99"),
        (header(0, 1) + text("key") + struct.pack("<IB", 7, 2) + bytes(20), "expected a boolean, got byte 2"),
        (header(0, 1) + struct.pack("<Q", 1) + b"\xff" + bytes(20), "not UTF-8"),
        (header(0, 2) + (text("key") + struct.pack("<II", 4, 1)) * 2, "'key' appears twice"),
        (header(0, 1) + text("k" * 5000) + struct.pack("<I", 99) + bytes(20), f"'{'k' * 99} has type 99"),
    ],
)
def test_a_header_that_breaks_the_rules_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse(data)
    assert message in str(caught.value)
    assert str(caught.value).startswith("m.gguf: ")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Tensor(77, (1,), bytes(32)), "ggml type 77 is not known"),
        (Tensor("F32", (), bytes(32)), "expected 1 to 4 dimensions, got 0"),
        (Tensor("F32", (1, 1, 1, 1, 1), bytes(32)), "got 5"),
        (Tensor("F32", (0, 4), bytes(32)), "at least 1 each"),
        (Tensor("Q8_0", (2, 48), bytes(102)), "a multiple of 32"),
        (Tensor("F32", (1 << 62, 1 << 62), bytes(32)), "ends at byte"),
        (Tensor("F32", (9,), bytes(32)), "ends at byte"),
        (Tensor("F32", (1,), bytes(32), offset=4), "offset 4 is not a multiple of 32"),
        (Tensor("F32", (1,), bytes(32), offset=1 << 60), "ends at byte"),
    ],
)
def test_a_tensor_that_breaks_the_rules_is_refused_by_name(tensor: Tensor, message: str) -> None:
    with pytest.raises(CheckpointError, match="tensor 'x'") as caught:
        parse(File({}, {"x": tensor}).encode())
    assert message in str(caught.value)


def test_tensors_must_not_overlap_or_appear_twice() -> None:
    with pytest.raises(CheckpointError, match="'b' overlaps 'a'"):
        parse(File({}, {"a": Tensor("F32", (9,), bytes(36)), "b": Tensor("F32", (1,), b"", offset=32)}).encode())
    twice = File({}, {"a": ZEROS, "b": ZEROS}).encode().replace(text("b"), text("a"))
    with pytest.raises(CheckpointError, match="'a' appears twice"):
        parse(twice)


@pytest.mark.parametrize("value", [U32(0), U32(48), U32(1 << 20), "32", True])
def test_an_alignment_that_is_no_small_power_of_two_is_refused(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"general\.alignment"):
        parse(File({"general.alignment": value}, {}).encode())


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        read_header(tmp_path / "m.gguf")


@pytest.mark.parametrize("length", range(0, len(SOUND), 7))
def test_a_truncated_file_is_refused(length: int) -> None:
    with pytest.raises(CheckpointError):
        parse(SOUND[:length])


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6))
def test_a_damaged_header_is_read_or_refused_within_its_own_size(changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(SOUND)
    for start, replacement in changes:
        data[start : start + len(replacement)] = replacement
    tracemalloc.start()
    try:
        found = parse(bytes(data))
    except CheckpointError as exc:
        assert str(exc).startswith("m.gguf: ") and len(str(exc)) < 2000
    else:
        assert all(entry.offset + entry.nbytes <= len(data) for entry in found.tensors.values())
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 20


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_noise_behind_a_sound_beginning_is_refused(noise: bytes) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError)):
        parse(b"GGUF" + struct.pack("<IQQ", 3, 3, 3) + noise)
