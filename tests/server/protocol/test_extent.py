"""How much a message may hold: refused before it is read, and nothing that is only text."""

from __future__ import annotations

import json

import pytest

from unicorn_async.server.protocol import fields as fields_module
from unicorn_async.server.protocol.completion_request import parse_ids
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.extent import MAX_CONTAINERS, MAX_MEMBERS, MAX_STRINGS, MAX_VALUES
from unicorn_async.server.protocol.fields import parse_object


def members(number: int) -> str:
    return ",".join(f'"{index}":1' for index in range(number))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f'{{"a":[{"1," * MAX_VALUES}1]}}', f"{MAX_VALUES} values, got {MAX_VALUES + 1}"),
        (f"{{{members(MAX_MEMBERS + 1)}}}", f"{MAX_MEMBERS} members of objects, got {MAX_MEMBERS + 1}"),
        (f'{{"a":[{"[]," * MAX_CONTAINERS}1]}}', f"{MAX_CONTAINERS} objects and arrays, got {MAX_CONTAINERS + 2}"),
        (f'{{"a":[{"{}," * MAX_CONTAINERS}1]}}', f"{MAX_CONTAINERS} objects and arrays, got {MAX_CONTAINERS + 2}"),
        ('{"∢":[' + '"",' * 600_000 + "1]}", f"{MAX_STRINGS} strings, got 600001"),
        (f'{{"\\\\":1,"\\"":2,"∢,":[{"1," * MAX_VALUES}', f"{MAX_VALUES} values, got {MAX_VALUES + 3}"),
    ],
    ids=["values", "members", "arrays", "objects", "strings", "cut"],
)
def test_more_values_than_any_request_needs_are_refused_unread(
    monkeypatch: pytest.MonkeyPatch, text: str, what: str, encoding: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it is read")

    monkeypatch.setattr(fields_module.json, "loads", refuse)
    with pytest.raises(ApiError, match=f"the message: expected at most {what}") as caught:
        parse_object(text.encode(encoding))
    assert (caught.value.status, caught.value.code) == (413, "message_too_large")


@pytest.mark.parametrize("text", [',:[{"\\' * 200_000, "\\" * 200_001 + '",' * 600_000, "∢," * 600_000])
def test_what_is_in_a_string_does_not_count(text: str) -> None:
    found = {"a": text, "b" + text: text, "c": [1] * 1000}
    assert parse_object(json.dumps(found, ensure_ascii=False)).data == found
    assert parse_object(json.dumps(found)).data == found


def test_as_many_as_there_may_be_are_read() -> None:
    assert len(parse_object(f"{{{members(MAX_MEMBERS)}}}").keys()) == MAX_MEMBERS
    ids = parse_object(f'{{"a":[{"1," * (MAX_VALUES - 1)}1]}}').value("a")
    assert parse_ids(ids, "a") == (1,) * MAX_VALUES


@pytest.mark.parametrize("wrong", [True, 1.0, -1, 1 << 31, "1", None])
def test_ids_are_whole_numbers_of_four_bytes(wrong: object) -> None:
    with pytest.raises(ApiError, match=f"a: expected token ids, 0 to 2147483647, got {wrong!r}"):
        parse_ids([0, (1 << 31) - 1, wrong], "a")
