"""Schemas of the objects by which a request says how it is to be answered."""

from __future__ import annotations

from unicorn_async.lora_spec import MAX_LORA_WEIGHT, MAX_LORAS
from unicorn_async.server.openapi_kinds import FLAG, NO, OBJECT, TEXT, Schema, closed, number, one_of, or_null, text
from unicorn_async.server.openapi_messages import CONTENT
from unicorn_async.server.protocol.fields import MAX_KEY, MAX_PAIRS, MAX_VALUE
from unicorn_async.server.protocol.hints import MAX_NAME
from unicorn_async.server.protocol.load_request import MAX_NAME as MAX_MODEL_NAME
from unicorn_async.server.protocol.reasoning import EFFORTS
from unicorn_async.server.protocol.template_options import MAX_VARIABLES, OWN
from unicorn_async.server.protocol.tools import MAX_TOOLS

_NAME: Schema = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
_SOME_TEXT: Schema = {"type": "string", "minLength": 1}
_SCHEMA_FIELDS: dict[str, Schema] = {
    "name": {"type": ["string", "null"], "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
    "description": TEXT,
    "schema": {"type": "object"},
    "strict": FLAG,
}
_COMMON_FORMATS = (
    closed({"type": one_of("text")}, has_nulls=True),
    closed({"type": {"const": "json_object"}, "schema": OBJECT}, "type", has_nulls=True),
    closed(
        {
            "type": {"const": "grammar"},
            "syntax": {"enum": ["lark", "regex"]},
            "definition": _SOME_TEXT,
        },
        *("type", "syntax", "definition"),
        has_nulls=True,
    ),
)
_JSON_SCHEMA: dict[str, Schema] = {"type": {"const": "json_schema"}}
RESPONSE_FORMAT = or_null(
    *_COMMON_FORMATS,
    closed(
        {**_JSON_SCHEMA, "json_schema": closed(_SCHEMA_FIELDS, "schema", has_nulls=True)},
        *("type", "json_schema"),
        has_nulls=True,
    ),
)
_TEXT_FORMAT = or_null(*_COMMON_FORMATS, closed({**_JSON_SCHEMA, **_SCHEMA_FIELDS}, "type", "schema", has_nulls=True))
TEXT_OPTIONS = or_null(closed({"format": _TEXT_FORMAT, "verbosity": one_of("medium")}))
_GRAMMARS: dict[str, Schema] = {
    "json": {"type": ["object", "string"]},
    "json_object": {"const": True},
    "regex": _SOME_TEXT,
    "choice": {"type": "array", "items": _SOME_TEXT, "minItems": 1},
    "grammar": _SOME_TEXT,
}
STRUCTURED_OUTPUTS = or_null(
    *(closed({**dict.fromkeys(_GRAMMARS, NO), key: schema}, key) for key, schema in _GRAMMARS.items())
)
_FUNCTION: dict[str, Schema] = {"name": _NAME, "description": TEXT, "parameters": OBJECT, "strict": FLAG}
_IS_FUNCTION: dict[str, Schema] = {"type": {"const": "function"}}
_NAMED: dict[str, Schema] = {**_IS_FUNCTION, "name": {"type": "string"}}
_NAMED_WITHIN: dict[str, Schema] = {
    **_IS_FUNCTION,
    "function": closed({"name": {"type": "string"}}, "name", has_nulls=True),
}
_MODES = ("none", "auto", "required")


def _tools(item: Schema) -> Schema:
    return {"type": ["array", "null"], "items": item, "maxItems": MAX_TOOLS}


def _allowed(names: dict[str, Schema], of_one: str) -> dict[str, Schema]:
    one = closed({**names, "type": {}}, of_one, has_nulls=True)
    return {"mode": one_of("auto", "required"), "tools": {"type": "array", "items": one, "minItems": 1}}


_TYPE_ALLOWED: dict[str, Schema] = {"type": {"const": "allowed_tools"}}
TOOLS = _tools(closed({**_IS_FUNCTION, **_FUNCTION, "output_schema": {}}, "type", "name", has_nulls=True))
CHAT_TOOLS = _tools(
    closed(
        {**_IS_FUNCTION, "function": closed(_FUNCTION, "name", has_nulls=True), "cache_control": {}},
        *("type", "function"),
        has_nulls=True,
    )
)
TOOL_CHOICE = or_null(
    {"enum": list(_MODES)},
    closed(_NAMED, "type", "name", has_nulls=True),
    closed({**_TYPE_ALLOWED, **_allowed(_NAMED, "name")}, "type", "tools", has_nulls=True),
)
CHAT_TOOL_CHOICE = or_null(
    {"enum": list(_MODES)},
    closed(_NAMED_WITHIN, "type", "function", has_nulls=True),
    closed(
        {**_TYPE_ALLOWED, "allowed_tools": closed(_allowed(_NAMED_WITHIN, "function"), "tools", has_nulls=True)},
        *("type", "allowed_tools"),
        has_nulls=True,
    ),
)
REASONING = or_null(
    closed(
        {
            "context": one_of("auto", "current_turn"),
            "effort": one_of(*EFFORTS),
            "generate_summary": one_of("auto"),
            "mode": one_of("standard"),
            "summary": one_of("auto"),
        }
    )
)
CACHE_OPTIONS = or_null(closed({"mode": one_of("explicit", "implicit"), "ttl": text(MAX_NAME)}))
PREDICTION = or_null(closed({"type": one_of("content"), "content": CONTENT}, "content"))
STREAM_OPTIONS = or_null(closed({"include_obfuscation": NO}))
_USAGE: dict[str, Schema] = {"include_obfuscation": NO, "include_usage": FLAG, "continuous_usage_stats": NO}
USAGE_OPTIONS = or_null(
    closed(_USAGE),
    closed({**_USAGE, "include_usage": {"const": True}, "continuous_usage_stats": FLAG}, "include_usage"),
)
METADATA: Schema = {
    **OBJECT,
    "maxProperties": MAX_PAIRS,
    "propertyNames": {"maxLength": MAX_KEY},
    "additionalProperties": {"type": "string", "maxLength": MAX_VALUE},
}
TEMPLATE_VARIABLES: Schema = {
    **OBJECT,
    "maxProperties": MAX_VARIABLES,
    "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "not": {"enum": sorted(OWN)}},
    "additionalProperties": {"type": ["boolean", "number", "string", "null"], "pattern": "^[\\w .,:/+-]{0,256}$"},
}
_ADAPTER: dict[str, Schema] = {"weight": number(-MAX_LORA_WEIGHT, MAX_LORA_WEIGHT)}
_ADAPTER_NAME: Schema = {"type": "string", "maxLength": MAX_MODEL_NAME}
_ABSENT: Schema = {"type": "null"}
LORAS: Schema = {
    "type": ["array", "null"],
    "maxItems": MAX_LORAS,
    "items": {
        "anyOf": [
            closed({**_ADAPTER, "name": _ADAPTER_NAME, "path": _ABSENT}, "name"),
            closed({**_ADAPTER, "path": _ADAPTER_NAME, "name": _ABSENT}, "path"),
        ]
    },
}
