"""Each field of each request's schema is taken or refused by what reads it, as the schema says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server.openapi_schemas import schemas
from unicorn_async.server.protocol.chat_request import parse_chat_request
from unicorn_async.server.protocol.compact_request import parse_compact_request
from unicorn_async.server.protocol.completion_request import parse_completion_request
from unicorn_async.server.protocol.embedding_request import parse_embedding_request
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import Fields
from unicorn_async.server.protocol.input_items import INPUT_TOKENS_FIELDS
from unicorn_async.server.protocol.load_request import (
    parse_load_request,
    parse_placement_request,
    parse_unload_request,
)
from unicorn_async.server.protocol.responses_request import parse_responses_request
from unicorn_async.server.protocol.tokenize_request import (
    parse_detokenize_request,
    parse_template_request,
    parse_tokenize_request,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAMPLING = SamplingParams()
MESSAGES = {"messages": [{"role": "user", "content": "Hi"}]}


def parse_input_tokens(fields: Fields) -> None:
    fields.refuse_unknown(INPUT_TOKENS_FIELDS)
    parse_responses_request(fields, defaults=SAMPLING)


READERS: dict[str, tuple[Callable[[Fields], object], dict[str, Any]]] = {
    "ChatRequest": (lambda fields: parse_chat_request(fields, defaults=SAMPLING), MESSAGES),
    "CompactRequest": (parse_compact_request, {"input": "Hi"}),
    "CompletionRequest": (lambda fields: parse_completion_request(fields, defaults=SAMPLING), {"prompt": "Hi"}),
    "DetokenizeRequest": (parse_detokenize_request, {"tokens": [1]}),
    "EmbeddingRequest": (parse_embedding_request, {"input": "Hi"}),
    "InputTokensRequest": (parse_input_tokens, {"input": "Hi"}),
    "LoadRequest": (parse_load_request, {"model": "a"}),
    "PlacementRequest": (parse_placement_request, {"model": "a"}),
    "ResponsesRequest": (lambda fields: parse_responses_request(fields, defaults=SAMPLING), {"input": "Hi"}),
    "TemplateRequest": (parse_template_request, MESSAGES),
    "TokenizeRequest": (parse_tokenize_request, MESSAGES),
    "UnloadRequest": (parse_unload_request, {}),
}
TOOL = {"type": "function", "name": "f"}
CHAT_TOOL = {"type": "function", "function": {"name": "f"}}
# What has to be there for a field to mean something; of fields that exclude each other nothing is described.
BESIDE: dict[str, dict[str, object]] = {
    "ChatRequest.stream_options": {"stream": True},
    "ChatRequest.tool_choice": {"tools": [CHAT_TOOL]},
    "ChatRequest.top_logprobs": {"logprobs": True},
    "CompletionRequest.max_tokens": {"echo": True},
    "CompletionRequest.n": {"best_of": 128},
    "CompletionRequest.stream_options": {"stream": True},
    "InputTokensRequest.tool_choice": {"tools": [TOOL]},
    "ResponsesRequest.response_id": {"background": True},
    "ResponsesRequest.tool_choice": {"tools": [TOOL]},
    "TemplateRequest.tool_choice": {"tools": [CHAT_TOOL]},
    "TokenizeRequest.tool_choice": {"tools": [CHAT_TOOL]},
}
OBJECTS: tuple[dict[str, Any], ...] = (
    *({}, {"a": "b"}, {"a": 1}, {"a": None}, {"1": 1}, {"tools": 1}, {"x": []}),
    *({str(number): "x" for number in range(17)}, {"x" * 65: "x"}, {"x": "x" * 513}, {"x": "<"}),
    *({"type": "text"}, {"type": "x"}, {"type": "json_object"}, {"type": "json_object", "schema": {}}),
    *({"type": "json_schema"}, {"type": "json_schema", "schema": {}}, {"type": "json_schema", "json_schema": {}}),
    *({"type": "json_schema", "json_schema": {"schema": {}}}, {"type": "grammar", "definition": "x"}),
    *({"type": "grammar", "syntax": "regex", "definition": ""}, {"type": "text", "syntax": "regex"}),
    *({"type": "grammar", "syntax": "regex", "definition": "x"}, {"type": "text", "schema": None}),
    *({"format": {}}, {"format": {"type": "json_schema", "schema": {}}}, {"verbosity": "low"}, {"verbosity": "medium"}),
    *({"effort": "low"}, {"effort": "x"}, {"summary": "concise"}, {"mode": "standard"}, {"mode": "implicit"}),
    *({"include_usage": True}, {"include_obfuscation": True}, {"continuous_usage_stats": True}, {"ttl": "x"}),
    *({"include_usage": True, "continuous_usage_stats": True}, {"include_usage": 1}, {"include_obfuscation": False}),
    *({"type": "content", "content": "x"}, {"content": [{"type": "text", "text": "x"}]}, {"content": [{}]}),
    *({"json": {}}, {"json_object": True}, {"json_object": False}, {"regex": ""}, {"regex": "a", "choice": ["a"]}),
    *({"choice": []}, {"choice": ["a"]}, {"choice": ["", "a"]}, {"grammar": "x", "regex": None}, {"json": 1}),
    *(TOOL, CHAT_TOOL, {**CHAT_TOOL, "name": "f"}, {**TOOL, "more": None}, {"type": "function", "function": {}}),
    *({"type": "allowed_tools", "tools": [TOOL]}, {"type": "allowed_tools", "tools": [], "mode": "auto"}),
    *({"type": "allowed_tools", "allowed_tools": {"tools": [CHAT_TOOL], "mode": "x"}},),
    *({"type": "allowed_tools", "allowed_tools": {"tools": [CHAT_TOOL]}},),
)
ITEMS: tuple[Any, ...] = (
    *(1, -1, 2**31, "x", "", None, True, [], [1], ["x"], "text", "message.output_text.logprobs"),
    *(TOOL, CHAT_TOOL, {}, {"name": "a"}, {"path": "a", "name": None}, {"path": "a", "name": "a"}, {"weight": 1}),
    *({"name": "a", "weight": 1001}, {**TOOL, "name": "a b"}, {**TOOL, "strict": 1}, {**TOOL, "parameters": []}),
    *({"role": "user", "content": "x"}, {"role": "x", "content": "x"}, {"role": "user"}, {"role": "user", "x": 1}),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 0.5, -0.5, 1e300, 2**31 - 1, 2**31, 2**64),
    *("", "x", "auto", "none", "medium", "default", "required", "x" * 201, "x" * 513, "resp_" + "0" * 24),
    *([], *([item] for item in ITEMS), *(["x", item] for item in ITEMS)),
    *OBJECTS,
)


def bounds(schema: Any) -> Iterator[Any]:
    """Yield what lies at a schema's edges, on either side."""
    if isinstance(schema, list):
        for part in schema:
            yield from bounds(part)
    if not isinstance(schema, dict):
        return
    for name, low in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", 1e-3)):
        if name in schema:
            yield from (schema[name], schema[name] + low)
    if "maxLength" in schema:
        yield from ("x" * schema["maxLength"], "x" * (schema["maxLength"] + 1))
    if schema.get("maxItems", 1000) < 1000:
        item: Any = 1 if schema["items"].get("type") == "integer" else {"name": "a"}
        yield from ([item] * schema["maxItems"], [item] * (schema["maxItems"] + 1))
    yield from schema.get("enum", ())
    for inner in ("anyOf", "properties", "items"):
        yield from bounds(
            list(schema[inner].values()) if inner == "properties" and inner in schema else schema.get(inner)
        )


@pytest.mark.parametrize("name", [name for name in schemas() if name != "Error"])
def test_each_field_is_read_as_it_is_described(name: str) -> None:
    schema: Any = schemas()[name]
    read, body = READERS[name]
    validator = Draft202012Validator(schema)
    wrong: list[str] = []
    for field, described in schema["properties"].items():
        for value in (*VALUES, *bounds(described)):
            asked = {**body, **BESIDE.get(f"{name}.{field}", {}), field: value}
            try:
                read(Fields(asked))
                problem = None
            except ApiError as exc:
                problem = str(exc)
            if (problem is None) is not validator.is_valid(asked):
                wrong.append(f"{field} {value!r:.100}: {problem or 'taken'}")
    assert wrong == []


@pytest.mark.parametrize("name", READERS)
def test_fields_that_are_not_described_are_refused(name: str) -> None:
    read, body = READERS[name]
    read(Fields(body))
    with pytest.raises(ApiError, match="nothing_of_that_name: unknown"):
        read(Fields({**body, "nothing_of_that_name": None}))
