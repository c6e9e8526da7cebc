"""Request parsing under input that nobody foresaw."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server.protocol.chat_request import KNOWN as CHAT_FIELDS
from unicorn_async.server.protocol.chat_request import parse_chat_request
from unicorn_async.server.protocol.client_event import parse_client_event
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, describe_error
from unicorn_async.server.protocol.fields import parse_object
from unicorn_async.server.protocol.messages import merge_system
from unicorn_async.server.protocol.responses_request import KNOWN as RESPONSES_FIELDS
from unicorn_async.server.protocol.responses_request import parse_responses_request
from unicorn_async.tokenizer import ChatMessage

DEFAULTS = SamplingParams()
KEYS = [
    "type",
    "role",
    "content",
    "text",
    "format",
    "schema",
    "json_schema",
    "regex",
    "choice",
    "name",
    "function",
    "mode",
]
KEYS += ["parameters", "tools", "allowed_tools", "tool_calls", "tool_call_id", "id", "call_id", "arguments", "output"]
WORDS = [
    "function",
    "function_call",
    "function_call_output",
    "allowed_tools",
    "json_schema",
    "grammar",
    "lark",
    "required",
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": st.text() | JSON}
    )
    | st.dictionaries(st.sampled_from(KEYS), JSON)
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(RESPONSES_FIELDS)), JSON), st.text() | MESSAGES)
def test_any_responses_body_is_taken_or_refused(body: dict[str, object], value: object) -> None:
    fields = parse_object(json.dumps({**body, "input": value}))
    with suppress(ApiError):
        parse_responses_request(fields, defaults=DEFAULTS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(CHAT_FIELDS)), JSON), MESSAGES)
def test_any_chat_body_is_taken_or_refused(body: dict[str, object], messages: object) -> None:
    fields = parse_object(json.dumps({**body, "messages": messages}))
    with suppress(ApiError):
        parse_chat_request(fields, defaults=DEFAULTS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text() | st.binary() | JSON.map(json.dumps))
def test_any_event_is_taken_or_refused_in_words_that_can_be_sent(message: str | bytes) -> None:
    try:
        parse_client_event(parse_object(message), defaults=DEFAULTS)
    except ApiError as exc:
        assert encode_object(describe_error(exc).to_json()).isascii()


def test_what_a_request_leaves_out_comes_from_the_defaults() -> None:
    defaults = SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1, stop=("x",))
    request = parse_responses_request(parse_object('{"input": "Hi", "top_k": 0}'), defaults=defaults)
    assert request.sampling == SamplingParams(
        temperature=0.7, top_k=0, top_p=0.95, min_p=0.05, repetition_penalty=1.1, stop=("x",)
    )


def test_content_parts_are_joined_and_developers_are_the_system() -> None:
    items = [
        {"type": "message", "role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
    ]
    request = parse_responses_request(parse_object(json.dumps({"input": items})), defaults=DEFAULTS)
    assert [(message.role, message.content) for message in request.messages] == [
        ("system", "Be brief."),
        ("user", "ab"),
        ("assistant", "c"),
    ]


HISTORY = {
    "reasoning_details": [{"type": "reasoning.text", "text": "I should look.", "format": "unknown", "index": 0}],
    "provider_specific_fields": {"citations": None, "refusal": None},
    "thinking_blocks": [{"type": "thinking", "thinking": "I should look.", "signature": "c2ln"}],
}


def test_what_other_servers_put_into_an_assistants_messages_changes_nothing() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    marked = {**call, "index": 0, "provider_specific_fields": {"thought_signature": "c2ln"}}
    asked = {"role": "user", "content": "Is there one?"}
    returned = {"role": "tool", "tool_call_id": "call_1", "content": "yes"}

    def chat(message: dict[str, object]) -> object:
        said = [asked, {"role": "assistant", "content": "Let me see.", **message}, returned]
        return parse_chat_request(parse_object(json.dumps({"messages": said})), defaults=DEFAULTS).messages

    def response(message: dict[str, object]) -> object:
        said = [asked, {"type": "message", "role": "assistant", "content": "Let me see.", **message}]
        return parse_responses_request(parse_object(json.dumps({"input": said})), defaults=DEFAULTS).messages

    assert chat({**HISTORY, "tool_calls": [marked]}) == chat({"tool_calls": [call]})
    assert response(HISTORY) == response({})


@pytest.mark.parametrize("field", HISTORY)
def test_nobody_else_sends_such_fields(field: str) -> None:
    said = [{"role": "user", "content": "Is there one?", field: HISTORY[field]}]
    for body, parse in (({"messages": said}, parse_chat_request), ({"input": said}, parse_responses_request)):
        with pytest.raises(ApiError) as caught:
            parse(parse_object(json.dumps(body)), defaults=DEFAULTS)
        assert caught.value.code == "unknown_parameter"
        assert (caught.value.param or "").endswith(f"[0].{field}")


def test_instructions_and_leading_system_messages_become_one() -> None:
    messages = [ChatMessage("system", "b"), ChatMessage("user", "c"), ChatMessage("system", "d")]
    merged = merge_system("a", messages)
    assert [(message.role, message.content) for message in merged] == [
        ("system", "a\n\nb"),
        ("user", "c"),
        ("system", "d"),
    ]
    assert merge_system(None, messages[1:2]) == (ChatMessage("user", "c"),)


@pytest.mark.parametrize("text", ['{"input": "' + "9" * 5000 + '", "seed": ' + "9" * 5000 + "}", '{"a": Infinity}'])
def test_numbers_that_are_not_numbers_are_not_json(text: str) -> None:
    with pytest.raises(ApiError, match="not valid JSON"):
        parse_object(text)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({str(number): "" for number in range(17)}, "at most 16 pairs, got 17"),
        ({"k" * 65: ""}, "at most 64 characters, got 65"),
        ({"k": "v" * 513}, "at most 512 characters, got 513"),
    ],
)
def test_metadata_has_openais_limits(metadata: dict[str, str], words: str) -> None:
    body = parse_object(json.dumps({"input": "Hi", "metadata": metadata}))
    with pytest.raises(ApiError, match=words) as caught:
        parse_responses_request(body, defaults=DEFAULTS)
    assert (caught.value.param or "").startswith("metadata")
    within = {"k" * 64: "v" * 512, **{str(number): "" for number in range(15)}}
    request = parse_responses_request(parse_object(json.dumps({"input": "", "metadata": within})), defaults=DEFAULTS)
    assert request.metadata == within
