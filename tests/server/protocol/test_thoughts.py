"""Thoughts and answer are told apart, however the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicorn_async.server.protocol.thoughts import ThoughtSplitter

CASES = [
    ("<think>\nWhy?\n\nSo.\n</think>\n\nYes.\n", False, "Why?\n\nSo.", "Yes.\n"),
    ("  <think>a</think>b", False, "a", "b"),
    ("Why?</think>Yes.", True, "Why?", "Yes."),
    ("<think></think>\n\nYes", False, "", "Yes"),
    ("Yes, <think>no</think>", False, "", "Yes, <think>no</think>"),
    (" plain ", False, "", " plain "),
    ("<thinner", False, "", "<thinner"),
    ("<th", False, "", "<th"),
    ("", False, "", ""),
    ("<think>a </th", False, "a </th", ""),
    ("a < b </ c </think> d </think>", True, "a < b </ c", "d </think>"),
    ("only thoughts \n", True, "only thoughts", ""),
    ("<think>a</think>  ", False, "a", ""),
    ("</think>x", True, "", "x"),
]


def parted(pieces: list[str], is_open: bool) -> tuple[str, str]:
    splitter = ThoughtSplitter(is_open=is_open)
    found = [part for piece in pieces for part in splitter.feed(piece)] + splitter.finish()
    assert all(text for _, text in found)
    assert sorted(found, key=lambda part: not part[0]) == found  # thoughts come first
    return "".join(text for thought, text in found if thought), "".join(text for thought, text in found if not thought)


@pytest.mark.parametrize(("text", "is_open", "thought", "answer"), CASES)
def test_whole_texts_and_single_characters_give_the_same(text: str, is_open: bool, thought: str, answer: str) -> None:
    assert parted([text], is_open) == (thought, answer)
    assert parted(list(text), is_open) == (thought, answer)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", " ", "\n", "a", "<"])), st.booleans())
def test_cuts_make_no_difference(pieces: list[str], is_open: bool) -> None:
    assert parted(pieces, is_open) == parted(["".join(pieces)], is_open)


def test_an_answer_comes_as_it_is_told() -> None:
    splitter = ThoughtSplitter(is_open=False)
    assert splitter.feed("<think>a") == [(True, "a")]
    assert splitter.is_thinking
    assert splitter.feed(" b</think>c") == [(True, " b"), (False, "c")]
    assert splitter.feed(" <") == [(False, " <")]
    assert not splitter.is_thinking


@pytest.mark.parametrize(
    ("text", "is_open", "thought", "answer"),
    [
        ("<|channel>thought\nWhy?\n<channel|>Yes.", False, "Why?", "Yes."),
        ("So.<channel|>\nYes. </think>", True, "So.", "Yes. </think>"),
        ("<|channel>thought\n<channel|>Yes", False, "", "Yes"),
        ("<think>Yes", False, "", "<think>Yes"),
        ("<|channel>other", False, "", "<|channel>other"),
        ("<|channel>thought\na <chan", False, "a <chan", ""),
    ],
)
def test_other_marks_stand_around_the_thoughts_of_other_models(
    text: str, is_open: bool, thought: str, answer: str
) -> None:
    for pieces in ([text], list(text)):
        splitter = ThoughtSplitter(is_open=is_open, marks=("<|channel>thought", "<channel|>"))
        found = [part for piece in pieces for part in splitter.feed(piece)] + splitter.finish()
        assert "".join(text for is_thought, text in found if is_thought) == thought
        assert "".join(text for is_thought, text in found if not is_thought) == answer
