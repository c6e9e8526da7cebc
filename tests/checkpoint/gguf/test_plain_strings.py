"""Arrays of strings that are read at once are what reading one string after the other makes of them."""

from __future__ import annotations

import pickle
import random
from io import BytesIO

import pytest

from unicorn_async.checkpoint.gguf import fields, plain_parts
from unicorn_async.checkpoint.gguf.fields import FieldReader
from unicorn_async.checkpoint.gguf.plain_parts import plain_part
from unicorn_async.checkpoint.gguf.plain_strings import PlainStrings
from unicorn_async.errors import CheckpointError

STRING, ARRAY = 8, 9
PLAIN = ["token", "▁of", "🦄" * 20, "", "a" * 255, "b" * 256, "c" * 700, "d" * 8]
ODD = ["\0", "zeros" + "\0" * 7, "\0" * 8, "\0" * 30, "e" * 2000, "\x01" + "\0" * 7 + "x", "f" * 65536]


def encoded(strings: list[bytes]) -> bytes:
    return b"".join(len(data).to_bytes(8, "little") + data for data in strings)


def field(strings: list[bytes], count: int | None = None) -> bytes:
    """An array as a value of the metadata."""
    number = len(strings) if count is None else count
    return ARRAY.to_bytes(4, "little") + STRING.to_bytes(4, "little") + number.to_bytes(8, "little") + encoded(strings)


def read(data: bytes) -> tuple[object, int]:
    """Return the value, or the error's text, and the offset behind it."""
    reader = FieldReader(BytesIO(data), len(data), "file")
    try:
        value = reader.value("key")
    except CheckpointError as exc:
        return str(exc), -1
    return tuple(value) if isinstance(value, PlainStrings) else value, reader.offset


def read_one_by_one(data: bytes, patch: pytest.MonkeyPatch) -> tuple[object, int]:
    with patch.context() as slow:
        slow.setattr(fields, "_MANY", 1 << 62)
        return read(data)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of two strings are many, and pieces are small."""
    monkeypatch.setattr(fields, "_MANY", 2)
    monkeypatch.setattr(fields, "_PIECE_BYTES", 3000)


@pytest.mark.parametrize("odd_share", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("seed", range(20))
def test_any_strings_are_what_they_are_one_by_one(odd_share: float, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    strings = [rng.choice(ODD if rng.random() < odd_share else PLAIN).encode() for _ in range(rng.choice([2, 10, 300]))]
    data = field(strings) + rng.choice([b"", b"\0" * 30, b"\x05" + b"\0" * 7 + b"after", b"more"])
    assert read(data) == read_one_by_one(data, monkeypatch) == (tuple(s.decode() for s in strings), read(data)[1])


@pytest.mark.parametrize("seed", range(150))
def test_damage_is_the_error_that_it_is_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    data = bytearray(field([rng.choice(PLAIN).encode() for _ in range(60)]))
    if rng.random() < 0.3:
        del data[rng.randrange(16, len(data)) :]
    for _ in range(rng.choice([1, 1, 5])):
        data[rng.randrange(16, len(data))] = rng.choice([0, 1, 0xFF, 0xC3, rng.randrange(256)])
    assert read(bytes(data)) == read_one_by_one(bytes(data), monkeypatch)


def test_short_strings_are_not_made_until_they_are_wanted() -> None:
    data = field([b"some", b"tokens", "🦄".encode()])
    value = FieldReader(BytesIO(data), len(data), "file").value("key")
    assert isinstance(value, PlainStrings)
    assert (len(value), value[1], value[-1], tuple(value[:2])) == (3, "tokens", "🦄", ("some", "tokens"))
    assert tuple(pickle.loads(pickle.dumps(value))) == ("some", "tokens", "🦄")
    assert fields.shown(value) == "an array of 3"


def test_many_long_strings_are_left_to_be_read_one_by_one() -> None:
    assert plain_part(encoded([b"x" * 300] * 129), 129)[1] == 129
    assert plain_part(encoded([b"x" * 300] * 130), 130) == (b"", 0)


@pytest.mark.parametrize("repeated", [[b""], [b"", b"a"], [b"", b"x" * 300]])
def test_many_empty_strings_are_left_to_be_read_one_by_one(repeated: list[bytes]) -> None:
    """Each is a run of its own, and a run takes far longer than a string that is read by itself."""
    assert plain_part(encoded(repeated * 10), 10)[1] == 10
    assert plain_part(encoded(repeated * 1000), 1000 * len(repeated)) == (b"", 0)


def test_what_is_looked_at_is_no_more_than_the_strings_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def counted(data: bytes, most: int) -> tuple[bytes, int]:
        looked_at.append(len(data))
        return plain_part(data, most)

    monkeypatch.setattr(fields, "_PIECE_BYTES", 1 << 20)
    monkeypatch.setattr(plain_parts, "plain_part", counted)
    arrays = b"".join(field([b""] * 200) for _ in range(100))
    reader = FieldReader(BytesIO(arrays), len(arrays), "file")
    for _ in range(100):
        assert reader.value("key") == ("",) * 200
    assert len(looked_at) == 100
    assert sum(looked_at) < 5 * len(arrays)


def test_no_more_are_taken_than_were_asked_for() -> None:
    part, count = plain_part(encoded([b"a", b"bc", b"d"]), 2)
    assert (count, tuple(PlainStrings((part,), count))) == (2, ("a", "bc"))


def test_half_a_string_is_left() -> None:
    data = encoded([b"a", b"bcd"])
    for missing in range(1, 11):
        part, count = plain_part(data[:-missing], 2)
        assert (count, len(part)) == (1, 9)
