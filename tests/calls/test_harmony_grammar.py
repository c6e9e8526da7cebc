"""Answers made by the grammars of channels are told apart again, and their arguments fit the tools' schemas."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from tests.guidance.test_matchers import generated, made_vocabulary
from unicorn_async.calls.call_format import CallFormat, CallKind
from unicorn_async.calls.call_grammar import call_grammar
from unicorn_async.calls.events import Arguments, CallBegun, CallEnded, Said
from unicorn_async.calls.harmony import MARKS
from unicorn_async.calls.harmony_reader import HarmonyReader
from unicorn_async.calls.tool import ToolMode, ToolUse
from unicorn_async.guidance.matchers import Matchers
from unicorn_async.server.protocol.channels import ChannelSplitter

from .test_call_grammar import BY_NAME, TOOLS

FORM = CallFormat(CallKind.HARMONY, takes_tools=True)
ANSWER: dict[str, object] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
                             "additionalProperties": False}  # fmt: skip


@pytest.fixture(scope="module")
def matchers() -> Matchers:
    return Matchers(made_vocabulary())


def answers(matchers: Matchers, use: ToolUse, answer: dict[str, object] | None = None) -> list[tuple[str, list[str]]]:
    """What is said in each of some random answers, and the names of what is called; the vocabulary has no marks."""
    grammar, found = call_grammar(use, FORM, {}, answer), []
    for seed in range(8):
        text = generated(matchers, grammar, seed, most=1500)
        if text is None:
            continue
        marked = text.decode(errors="replace")
        for mark in MARKS:
            marked = marked.replace(mark[1:], mark)
        splitter, reader = ChannelSplitter({}, frozenset(BY_NAME)), HarmonyReader()
        pieces = [part for part in re.split(r"(\0<\|[a-z]+\|>)", marked) if part]
        told = [text for piece in pieces for is_thought, text in splitter.feed(piece) if not is_thought]
        events = [event for text in told for event in reader.feed(text)] + reader.finish()
        name, arguments = "", ""
        for event in events:
            if isinstance(event, CallBegun):
                name, arguments = event.name, ""
            elif isinstance(event, Arguments):
                arguments += event.delta
            elif isinstance(event, CallEnded):
                jsonschema.validate(json.loads(arguments), BY_NAME[name])
        said = "".join(event.text for event in events if isinstance(event, Said))
        found.append((said, [event.name for event in events if isinstance(event, CallBegun)]))
    return found


def test_a_required_call_comes_once_whatever_is_said_before(matchers: Matchers) -> None:
    for parallel in (True, False):
        found = answers(matchers, ToolUse(TOOLS, ToolMode.REQUIRED, parallel=parallel))
        assert len(found) >= 2 and all(len(called) == 1 for _, called in found)
    (only, *_) = answers(matchers, ToolUse(TOOLS, ToolMode.REQUIRED, names=frozenset({"now"})))
    assert only[1] == ["now"]


def test_calls_and_an_answer_of_a_form_go_together_and_a_form_needs_no_tools(matchers: Matchers) -> None:
    for said, called in answers(matchers, ToolUse(TOOLS, ToolMode.AUTO), ANSWER):
        if not called:
            jsonschema.validate(json.loads(said), ANSWER)
    alone = answers(matchers, ToolUse(), ANSWER)
    assert alone
    for said, called in alone:
        jsonschema.validate(json.loads(said), ANSWER)
        assert not called
