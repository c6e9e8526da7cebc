"""Thoughts, answer and calls in channels are told apart, however the text is cut into pieces."""

from __future__ import annotations

import pytest

from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, Said
from unicorn_async.calls.harmony import CALL, CHANNEL, CONSTRAIN, END, MARKS, MESSAGE, RETURN, START, is_harmony
from unicorn_async.calls.harmony_reader import HarmonyReader
from unicorn_async.server.protocol.channels import ChannelSplitter

TOOLS = frozenset({"look"})
NEXT = f"{END}{START}assistant"
THOUGHTS = f"{CHANNEL}analysis{MESSAGE}Why?\n"
FINAL = f"{CHANNEL}final{MESSAGE}"
CALLED = f"{CHANNEL}commentary to=functions.look {CONSTRAIN}json{MESSAGE}"
LOOK = f"{START}look{MESSAGE}"


def pieces(text: str, size: int) -> list[str]:
    """Marks whole, as tokens bring them, what lies between in parts."""
    found, rest = [], text
    while rest:
        mark = next((mark for mark in MARKS if rest.startswith(mark)), None)
        length = len(mark) if mark else min(size, rest.find("\0") if "\0" in rest else len(rest))
        found.append(rest[:length])
        rest = rest[length:]
    return found


def parted(splitter: ChannelSplitter, text: str, size: int) -> list[tuple[bool, str]]:
    """What is told apart, neighbours of a kind as one, but for calls' pieces."""
    found: list[tuple[bool, str]] = []
    for is_thought, part in [pair for piece in pieces(text, size) for pair in splitter.feed(piece)] + splitter.finish():
        is_mark = "\0" in part
        if found and found[-1][0] is is_thought and not is_mark and "\0" not in found[-1][1]:
            found[-1] = is_thought, found[-1][1] + part
        else:
            found.append((is_thought, part))
    return found


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{THOUGHTS}{NEXT}{FINAL}Yes.{RETURN}", [(True, "Why?\n"), (False, "Yes.")]),
        (f"{FINAL}Yes: <|end|> and <|channel|>{RETURN}", [(False, "Yes: <|end|> and <|channel|>")]),
        (f"{THOUGHTS}{NEXT}{THOUGHTS}{NEXT}{FINAL}a", [(True, "Why?\n\n\nWhy?\n"), (False, "a")]),
        (
            f"{THOUGHTS}{NEXT}{CHANNEL}commentary{MESSAGE}I look.{NEXT}{CALLED}{{}}{CALL}",
            [(True, "Why?\n"), (False, "I look."), (False, LOOK), (False, "{}"), (False, CALL)],
        ),
        (
            f'{THOUGHTS}{NEXT} to=functions.look{CHANNEL}commentary json{MESSAGE}{{"a": 1}}',
            [(True, "Why?\n"), (False, LOOK), (False, '{"a": 1}')],
        ),
        (f" to=functions.look{CHANNEL}commentary{MESSAGE}{{}}{CALL}", [(False, LOOK), (False, "{}"), (False, CALL)]),
        (f"{CHANNEL}commentary to=functions.other{MESSAGE}{{}}{CALL}", [(False, "{}")]),  # no tool of the request
        (f"{CHANNEL}analysis to=python {CONSTRAIN}code{MESSAGE}1 + 1{CALL}", [(True, "1 + 1")]),
        (f"{CHANNEL}commentary{MESSAGE}One.{NEXT}{FINAL}Two.{RETURN}", [(False, "One.\n\nTwo.")]),
        ('{"plain": 1}', [(False, '{"plain": 1}')]),  # as with a grammar that knows of no channels
        ("  to be", [(False, "  to be")]),
        ("to", [(False, "to")]),
        (f"{THOUGHTS}cut", [(True, "Why?\ncut")]),
        (f"{CHANNEL}fin", []),
        (f"{FINAL}a{RETURN}b", [(False, "a\n\nb")]),
        (f"{MESSAGE}a{MESSAGE}b{CONSTRAIN}c", [(False, "abc")]),
        ("", []),
    ],
)
def test_messages_are_told_apart_by_their_headers(text: str, expected: list[tuple[bool, str]], size: int) -> None:
    assert parted(ChannelSplitter({}, TOOLS), text, size) == expected


def test_a_header_without_an_end_is_text_and_takes_no_memory() -> None:
    (first, *others) = parted(ChannelSplitter({}), f"{CHANNEL}{'x' * 4000}", 100)
    assert first == (False, f"<|channel|>{'x' * 4000}") and not others


def test_thoughts_that_are_not_to_be_apart_are_in_the_text_with_their_marks() -> None:
    splitter = ChannelSplitter({}, apart=False)
    text = f"{THOUGHTS}{NEXT}{FINAL}Yes.{RETURN}"
    assert parted(splitter, text, 2) == [(False, "<|channel|>analysis<|message|>Why?\n<|end|>\n\nYes.")]


def test_headers_before_the_answer_count_as_thoughts() -> None:
    splitter = ChannelSplitter({}, TOOLS)
    seen = []
    for piece in (
        CHANNEL,
        "analysis",
        MESSAGE,
        "So",
        END,
        START,
        "assistant",
        CHANNEL,
        "final",
        MESSAGE,
        "Yes",
        RETURN,
    ):
        splitter.feed(piece)
        seen.append(splitter.is_thinking)
    assert seen == [True] * 9 + [False] * 3


def test_calls_are_read_from_what_was_told_apart() -> None:
    reader = HarmonyReader()
    events = [
        event for piece in ("a", LOOK, '{"x"', ": 1}", CALL, "b", LOOK, CALL, LOOK, "{") for event in reader.feed(piece)
    ]
    assert [*events, *reader.finish(), *reader.finish()] == [
        Said("a"),
        CallBegun("look"),
        Arguments('{"x"'),
        Arguments(": 1}"),
        CallEnded(),
        Said("b"),
        CallBegun("look"),
        Arguments("{}"),
        CallEnded(),
        CallBegun("look"),
        Arguments("{"),
        CallEnded(),
    ]


def test_the_format_is_known_by_its_marks() -> None:
    assert is_harmony("<|start|>system<|message|>…<|channel|>final")
    assert not is_harmony("<|start|>system<|message|>") and not is_harmony(None)
