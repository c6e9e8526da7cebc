"""Schemas of what requests may hold, by the fields' names; null is the same as absence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.config import WeightScheme
from unicorn_async.sampling_params import (
    MAX_BIAS,
    MAX_LOGIT_BIASES,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
)
from unicorn_async.server import openapi_messages, openapi_options
from unicorn_async.server.openapi_kinds import (
    FLAG,
    IDS,
    NO,
    OBJECT,
    TEXT,
    Schema,
    integer,
    number,
    one_of,
    or_null,
    positive,
    present,
    text,
)
from unicorn_async.server.protocol.chat_request import KNOWN as CHAT_FIELDS
from unicorn_async.server.protocol.chat_request import MAX_CHOICES
from unicorn_async.server.protocol.compact_request import COMPACT_FIELDS
from unicorn_async.server.protocol.completion_request import KNOWN as COMPLETION_FIELDS
from unicorn_async.server.protocol.embedding_request import ENCODINGS, MAX_DIMENSIONS, MAX_INPUTS
from unicorn_async.server.protocol.embedding_request import KNOWN as EMBEDDING_FIELDS
from unicorn_async.server.protocol.extent import MAX_VALUES
from unicorn_async.server.protocol.foreign import FOREIGN, IN_RESPONSES, OF_CHAT
from unicorn_async.server.protocol.hints import INCLUDABLE, MAX_NAME, MAX_TOOL_CALLS, SERVICE_TIERS
from unicorn_async.server.protocol.input_items import INPUT_TOKENS_FIELDS
from unicorn_async.server.protocol.load_request import CHOICE_FIELDS, LOAD_FIELDS, MAX_CONTEXT, UNLOAD_FIELDS
from unicorn_async.server.protocol.load_request import MAX_NAME as MAX_MODEL_NAME
from unicorn_async.server.protocol.reasoning import EFFORTS, FORMATS
from unicorn_async.server.protocol.responses_request import KNOWN as RESPONSES_FIELDS
from unicorn_async.server.protocol.responses_request import MAX_PREVIOUS, RESPONSE_ID
from unicorn_async.server.protocol.sampling import MAX_STOP_IDS, MAX_TOKENS
from unicorn_async.server.protocol.tokenize_request import CHAT_FIELDS as TEMPLATE_FIELDS
from unicorn_async.server.protocol.tokenize_request import TOKENIZE_FIELDS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from unicorn_async.server.protocol.foreign import Foreign

_REFUSED: Schema = {"description": "else refused", "enum": [None, [], {}]}
_STOP: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_LIMIT = integer(1, MAX_TOKENS)
FIELDS: dict[str, Schema] = {
    **dict.fromkeys(
        ("access_programs", "audio", "context_management", "conversation", "functions", "image", "moderation"),
        _REFUSED,
    ),
    **dict.fromkeys(("content", "instructions", "model"), TEXT),
    **dict.fromkeys(("prompt_cache_key", "safety_identifier", "user"), text(MAX_NAME)),
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
        FLAG,
    ),
    **dict.fromkeys(("max_completion_tokens", "max_output_tokens", "max_tokens"), _LIMIT),
    "best_of": integer(1, MAX_CHOICES),
    "chat_template_kwargs": openapi_options.TEMPLATE_VARIABLES,
    "client_metadata": OBJECT,
    "dimensions": integer(1, MAX_DIMENSIONS),
    "encoding_format": one_of(*ENCODINGS),
    "frequency_penalty": number(-2, 2),
    "function_call": {**_REFUSED, "enum": [None, [], {}, "none", "auto"]},
    "include": {"type": ["array", "null"], "items": {"enum": list(INCLUDABLE)}},
    "input": openapi_messages.INPUT,
    "logit_bias": {
        "type": ["object", "null"],
        "maxProperties": MAX_LOGIT_BIASES,
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
        "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
    },
    "logprobs": integer(0, MAX_TOP_LOGPROBS),
    "loras": openapi_options.LORAS,
    "max_context": integer(1, MAX_CONTEXT),
    "max_tool_calls": integer(1, MAX_TOOL_CALLS),
    "messages": openapi_messages.MESSAGES,
    "metadata": openapi_options.METADATA,
    "min_p": number(0, 1),
    "min_tokens": integer(0, MAX_TOKENS),
    "modalities": {"enum": [None, [], ["text"]]},
    "n": integer(1, MAX_CHOICES),
    "n_predict": {**integer(-1, MAX_TOKENS), "not": {"const": 0}},
    "prediction": openapi_options.PREDICTION,
    "presence_penalty": number(-2, 2),
    "previous_response_id": text(MAX_PREVIOUS),
    "prompt": _REFUSED,
    "prompt_cache_options": openapi_options.CACHE_OPTIONS,
    "prompt_cache_retention": one_of("24h", "in_memory"),
    "reasoning": openapi_options.REASONING,
    "reasoning_effort": one_of(*EFFORTS),
    "reasoning_format": one_of(*FORMATS),
    "repetition_penalty": positive(100),
    "response_format": openapi_options.RESPONSE_FORMAT,
    "response_id": {"type": ["string", "null"], "pattern": f"^{RESPONSE_ID.pattern}$"},
    "seed": integer(-1, (1 << 64) - 1),
    "service_tier": one_of(*SERVICE_TIERS),
    "stop": or_null(_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}),
    "stop_token_ids": or_null({**IDS, "maxItems": MAX_STOP_IDS}),
    "stream_options": openapi_options.STREAM_OPTIONS,
    "structured_outputs": openapi_options.STRUCTURED_OUTPUTS,
    "suffix": {"enum": [None, ""]},
    "temperature": number(0, 100),
    "text": openapi_options.TEXT_OPTIONS,
    "tokens": {**IDS, "maxItems": MAX_VALUES},
    "tool_choice": openapi_options.TOOL_CHOICE,
    "tools": openapi_options.TOOLS,
    "top_k": integer(-1, MAX_TOP_K),
    "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
    "top_p": positive(1),
    "truncation": one_of("auto", "disabled"),
    "verbosity": one_of("medium"),
    "web_search_options": {"type": "null"},
    "weights": one_of(*(scheme.value for scheme in WeightScheme)),
}
# Fields that chat spells otherwise than the Responses API.
_CHAT_TOOLS: dict[str, Schema] = {
    "tools": openapi_options.CHAT_TOOLS,
    "tool_choice": openapi_options.CHAT_TOOL_CHOICE,
}
_NOT_KEPT = "else refused: completions are not kept; the Responses API keeps its answers"
_CHAT: dict[str, Schema] = {
    **_CHAT_TOOLS,
    "logprobs": FLAG,
    "metadata": {"enum": [None, {}], "description": _NOT_KEPT},
    "store": {**NO, "description": _NOT_KEPT},
    "stream_options": openapi_options.USAGE_OPTIONS,
}
_NULL: Schema = {"type": "null"}
# How control tokens get into what is to be tokenized: a text of llama-server's, a conversation, a text of vLLM's.
_SPECIAL: tuple[dict[str, Schema], ...] = (
    {"add_special_tokens": _NULL},
    dict.fromkeys(("add_special", "add_special_tokens", "parse_special"), NO),
    {"add_special": _NULL},
)
_MODEL: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_MODEL_NAME}


def _foreign(fields: Mapping[str, Foreign]) -> dict[str, Schema]:
    return {
        name: {"description": f"else refused: {one.way}" if one.way else "else refused", "enum": [None, *one.neutral]}
        for name, one in fields.items()
    }


FIELDS |= _foreign(FOREIGN)
FIELDS |= {name: schema for name, schema in _foreign(OF_CHAT).items() if name not in FIELDS}


def _prompts(most: int) -> Schema:
    kinds: list[Schema] = [{"type": "string"}, IDS]
    several: Schema = {"type": "array", "items": {"anyOf": kinds}, "minItems": 1, "maxItems": most}
    return {"anyOf": [{"type": "string"}, {**IDS, "minItems": 1, "maxItems": MAX_VALUES}, several]}


def _body(fields: Collection[str], *required: str, **own: Schema) -> Schema:
    properties = {name: own.get(name, FIELDS[name]) for name in sorted(fields)}
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def schemas() -> dict[str, Schema]:
    """Return all bodies by their names, and the error that answers any of them."""
    prompts, texts = (
        present(("input", "instructions", "previous_response_id")),
        present(("content", "messages", "prompt")),
    )
    return {
        "ChatRequest": _body(CHAT_FIELDS, "messages", **_CHAT, **_foreign(OF_CHAT)),
        "CompactRequest": {**_body(COMPACT_FIELDS), "anyOf": present(("input", "previous_response_id"))},
        "CompletionRequest": _body(
            COMPLETION_FIELDS,
            "prompt",
            prompt=_prompts(MAX_CHOICES),
            max_tokens={**integer(0, MAX_TOKENS), "description": "0 with `echo` alone, for the prompt itself"},
            stream_options=openapi_options.USAGE_OPTIONS,
        ),
        "DetokenizeRequest": _body(("model", "tokens"), "tokens"),
        "EmbeddingRequest": _body(EMBEDDING_FIELDS, "input", input=_prompts(MAX_INPUTS)),
        "InputTokensRequest": {**_body(INPUT_TOKENS_FIELDS, **_foreign(IN_RESPONSES)), "anyOf": prompts},
        "LoadRequest": _body(LOAD_FIELDS, "model", model=_MODEL),
        "PlacementRequest": _body(CHOICE_FIELDS, "model", model=_MODEL),
        "ResponsesRequest": {**_body(RESPONSES_FIELDS, **_foreign(IN_RESPONSES)), "anyOf": prompts},
        "TemplateRequest": _body(TEMPLATE_FIELDS, "messages", **_CHAT_TOOLS),
        "TokenizeRequest": {
            **_body(TOKENIZE_FIELDS, prompt=TEXT, **_CHAT_TOOLS),
            "oneOf": [{**kind, "allOf": [{"properties": own}]} for kind, own in zip(texts, _SPECIAL, strict=True)],
        },
        "UnloadRequest": _body(UNLOAD_FIELDS, model={**text(MAX_MODEL_NAME), "minLength": 1}),
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
                        "param": TEXT,
                        "code": TEXT,
                    },
                }
            },
        },
    }
