"""Schemas of what requests may hold, by the fields' names; null is the same as absence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.config import MAX_BIAS, MAX_LOGIT_BIASES, MAX_TOP_K, MAX_TOP_LOGPROBS, WeightScheme
from unicorn_async.server.protocol.chat_request import KNOWN as CHAT_FIELDS
from unicorn_async.server.protocol.chat_request import MAX_CHOICES
from unicorn_async.server.protocol.compact_request import COMPACT_FIELDS
from unicorn_async.server.protocol.compaction import VERSION as SUMMARY_VERSION
from unicorn_async.server.protocol.completion_request import KNOWN as COMPLETION_FIELDS
from unicorn_async.server.protocol.embedding_request import ENCODINGS, MAX_INPUTS
from unicorn_async.server.protocol.embedding_request import KNOWN as EMBEDDING_FIELDS
from unicorn_async.server.protocol.hints import INCLUDABLE, SERVICE_TIERS
from unicorn_async.server.protocol.input_items import INPUT_TOKENS_FIELDS
from unicorn_async.server.protocol.load_request import CHOICE_FIELDS, LOAD_FIELDS, UNLOAD_FIELDS
from unicorn_async.server.protocol.messages import (
    HISTORY_FIELDS,
    MAX_MESSAGES,
    MESSAGE_FIELDS,
    PART_FIELDS,
    ROLES,
    TEXT_PARTS,
)
from unicorn_async.server.protocol.reasoning import EFFORTS, FORMATS
from unicorn_async.server.protocol.responses_request import KNOWN as RESPONSES_FIELDS
from unicorn_async.server.protocol.responses_request import RESPONSE_ID
from unicorn_async.server.protocol.tokenize_request import CHAT_FIELDS as TEMPLATE_FIELDS
from unicorn_async.server.protocol.tokenize_request import TOKENIZE_FIELDS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

Schema = dict[str, object]


def _integer(low: int, high: int | None = None) -> Schema:
    return {"type": ["integer", "null"], "minimum": low, **({} if high is None else {"maximum": high})}


def _number(low: float | None = None, high: float | None = None) -> Schema:
    bounds = {name: bound for name, bound in (("minimum", low), ("maximum", high)) if bound is not None}
    return {"type": ["number", "null"], **bounds}


def _positive(high: float) -> Schema:
    return {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": high}


def _one_of(names: Sequence[str]) -> Schema:
    return {"type": ["string", "null"], "enum": [*names, None]}


def _taken(names: Collection[str]) -> dict[str, Schema]:
    """Return fields of which this description says no more than that they are known."""
    return {name: {} for name in sorted(names)}


_TEXT: Schema = {"type": ["string", "null"]}
_FLAG: Schema = {"type": ["boolean", "null"]}
_OBJECT: Schema = {"type": ["object", "null"]}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_PART: Schema = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {**_taken(PART_FIELDS), "type": {"enum": sorted(TEXT_PARTS)}, "text": {"type": "string"}},
    "additionalProperties": {"type": "null"},
}
_TEXT_FORMS: list[Schema] = [{"type": "string"}, {"type": "array", "items": _PART}]
_CONTENT: Schema = {"anyOf": _TEXT_FORMS}
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {**_taken(MESSAGE_FIELDS), "role": {"enum": list(ROLES)}, "content": _CONTENT},
    "additionalProperties": {"type": "null"},
}
_ANSWER: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        **_taken(MESSAGE_FIELDS | HISTORY_FIELDS),
        "role": {"const": "assistant"},
        "content": {"anyOf": [*_TEXT_FORMS, {"type": "null"}]},
    },
    "additionalProperties": {"type": "null"},
}
_CALLED: Schema = {"name": {"type": "string"}, "arguments": {"type": "string"}}
_CALL: Schema = {
    "type": "object",
    "required": ["id", "function"],
    "properties": {
        "id": {"type": "string"},
        "function": {"type": "object", "required": ["name"], "properties": _CALLED},
    },
}
_CALLS_MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        **_taken(HISTORY_FIELDS),
        "role": {"const": "assistant"},
        "content": {"anyOf": [*_TEXT_FORMS, {"type": "null"}]},
        "tool_calls": {"type": ["array", "null"], "items": _CALL},
    },
}
_TOOL_MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content", "tool_call_id"],
    "properties": {"role": {"const": "tool"}, "content": _CONTENT, "tool_call_id": {"type": "string", "minLength": 1}},
}
_CALL_ITEM: Schema = {
    "type": "object",
    "required": ["type", "call_id", "name"],
    "properties": {"type": {"const": "function_call"}, "call_id": {"type": "string", "minLength": 1}, **_CALLED},
}
_OUTPUT_ITEM: Schema = {
    "type": "object",
    "required": ["type", "call_id", "output"],
    "properties": {
        "type": {"const": "function_call_output"},
        "call_id": {"type": "string", "minLength": 1},
        "output": _CONTENT,
    },
}
_COMPACTION_ITEM: Schema = {
    "type": "object",
    "required": ["type", "encrypted_content"],
    "properties": {
        "type": {"const": "compaction"},
        "id": _TEXT,
        "created_by": _TEXT,
        "encrypted_content": {"type": "string", "pattern": f"^{SUMMARY_VERSION}[.]"},
    },
    "additionalProperties": {"type": "null"},
}


def _several(*kinds: Schema) -> Schema:
    return {"type": "array", "items": {"anyOf": list(kinds)}, "minItems": 1, "maxItems": MAX_MESSAGES}


_REFUSED: Schema = {"description": "Refused, unless it is null or empty.", "enum": [None, [], {}]}
_TEXTS: Schema = {"anyOf": [_TEXT, {"type": "array", "items": {"type": "string"}}]}
_FORMAT: Schema = {"type": ["object", "null"], "properties": {"type": _TEXT}}

FIELDS: dict[str, Schema] = {
    **dict.fromkeys(
        (
            "access_programs",
            "audio",
            "context_management",
            "conversation",
            "function_call",
            "functions",
            "image",
            "moderation",
        ),
        _REFUSED,
    ),
    **dict.fromkeys(
        (
            "content",
            "instructions",
            "model",
            "previous_response_id",
            "prompt_cache_key",
            "safety_identifier",
            "user",
        ),
        _TEXT,
    ),
    **dict.fromkeys(
        (
            "add_generation_prompt",
            "add_special",
            "add_special_tokens",
            "background",
            "continue_final_message",
            "echo",
            "generate",
            "ignore_eos",
            "parallel_tool_calls",
            "parse_special",
            "return_token_strs",
            "store",
            "stream",
            "wait",
            "when_idle",
            "with_pieces",
        ),
        _FLAG,
    ),
    **dict.fromkeys(
        (
            "chat_template_kwargs",
            "client_metadata",
            "metadata",
            "prediction",
            "prompt_cache_options",
            "reasoning",
            "stream_options",
            "structured_outputs",
            "text",
        ),
        _OBJECT,
    ),
    "best_of": _integer(1, MAX_CHOICES),
    "dimensions": _integer(1),
    "encoding_format": _one_of(ENCODINGS),
    "frequency_penalty": _number(-2, 2),
    "include": {"type": ["array", "null"], "items": {"enum": list(INCLUDABLE)}},
    "input": {"anyOf": [_TEXT, _several(_MESSAGE, _ANSWER, _CALL_ITEM, _OUTPUT_ITEM, _COMPACTION_ITEM)]},
    "logprobs": {"anyOf": [_FLAG, _integer(0, MAX_TOP_LOGPROBS)]},
    "logit_bias": {
        "type": ["object", "null"],
        "maxProperties": MAX_LOGIT_BIASES,
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
        "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
    },
    "loras": {"type": ["array", "null"], "items": {"type": "object"}},
    "max_completion_tokens": _integer(1),
    "max_context": _integer(1),
    "max_output_tokens": _integer(1),
    "max_tokens": _integer(1),
    "max_tool_calls": _integer(1),
    "messages": _several(_MESSAGE, _CALLS_MESSAGE, _TOOL_MESSAGE),
    "min_p": _number(0, 1),
    "min_tokens": _integer(0),
    "modalities": {"type": ["array", "null"], "items": {"const": "text"}},
    "n": _integer(1, MAX_CHOICES),
    "presence_penalty": _number(-2, 2),
    "prompt": {"anyOf": [_TEXT, _IDS, {"type": "array", "items": {"anyOf": [{"type": "string"}, _IDS]}}]},
    "prompt_cache_retention": _one_of(("24h", "in_memory")),
    "reasoning_effort": _one_of(EFFORTS),
    "reasoning_format": _one_of(FORMATS),
    "repetition_penalty": _positive(100),
    "response_format": _FORMAT,
    "response_id": {"type": ["string", "null"], "pattern": f"^{RESPONSE_ID.pattern}$"},
    "seed": _integer(0, (1 << 64) - 1),
    "service_tier": _one_of(SERVICE_TIERS),
    "stop": _TEXTS,
    "stop_token_ids": {"anyOf": [_IDS, {"type": "null"}]},
    "suffix": {"enum": [None, ""]},
    "temperature": _number(0, 100),
    "tokens": _IDS,
    "tool_choice": {"anyOf": [{"type": ["string", "null"]}, {"type": "object"}]},
    "tools": {"type": ["array", "null"], "items": {"type": "object"}},
    "top_k": _integer(0, MAX_TOP_K),
    "top_logprobs": _integer(0, MAX_TOP_LOGPROBS),
    "top_p": _positive(1),
    "truncation": _one_of(("auto", "disabled")),
    "verbosity": _one_of(("medium",)),
    "web_search_options": {"type": "null"},
    "weights": _one_of([scheme.value for scheme in WeightScheme]),
}


def _prompts(most: int) -> Schema:
    kinds: list[Schema] = [{"type": "string"}, _IDS]
    return {"type": "array", "items": {"anyOf": kinds}, "minItems": 1, "maxItems": most}


def _body(fields: Collection[str], *required: str, **own: Schema) -> Schema:
    properties = {name: own.get(name, FIELDS[name]) for name in sorted(fields)}
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def _present(*names: str) -> list[Schema]:
    """Each of these fields is there, and not null."""
    return [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]


def schemas() -> dict[str, Schema]:
    """Return all bodies by their names, and the error that answers any of them."""
    prompts, texts = (
        _present("input", "instructions", "previous_response_id"),
        _present("content", "messages", "prompt"),
    )
    return {
        "ChatRequest": _body(CHAT_FIELDS, "messages", logprobs=_FLAG),
        "CompactRequest": {**_body(COMPACT_FIELDS), "anyOf": _present("input", "previous_response_id")},
        "CompletionRequest": _body(COMPLETION_FIELDS, "prompt", logprobs=_integer(0, MAX_TOP_LOGPROBS)),
        "DetokenizeRequest": _body(("model", "tokens"), "tokens"),
        "EmbeddingRequest": _body(
            EMBEDDING_FIELDS, "input", input={"anyOf": [{"type": "string"}, _IDS, _prompts(MAX_INPUTS)]}
        ),
        "InputTokensRequest": {**_body(INPUT_TOKENS_FIELDS), "anyOf": prompts},
        "LoadRequest": _body(LOAD_FIELDS, "model"),
        "PlacementRequest": _body(CHOICE_FIELDS, "model"),
        "ResponsesRequest": {**_body(RESPONSES_FIELDS, prompt=_REFUSED), "anyOf": prompts},
        "TemplateRequest": _body(TEMPLATE_FIELDS, "messages"),
        "TokenizeRequest": {**_body(TOKENIZE_FIELDS, prompt=_TEXT), "oneOf": texts},
        "UnloadRequest": _body(UNLOAD_FIELDS),
        "Error": {
            "type": "object",
            "required": ["error"],
            "properties": {
                "error": {
                    "type": "object",
                    "required": ["message", "type", "param", "code"],
                    "properties": {
                        "message": {"type": "string"},
                        "type": {"type": "string"},
                        "param": _TEXT,
                        "code": _TEXT,
                    },
                }
            },
        },
    }
