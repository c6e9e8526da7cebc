"""Schemas of conversations: messages, and the items of Responses."""

from __future__ import annotations

from unicorn_async.server.openapi_kinds import TEXT, Schema, or_null, taken
from unicorn_async.server.protocol.compaction import VERSION as SUMMARY_VERSION
from unicorn_async.server.protocol.messages import (
    HISTORY_FIELDS,
    MAX_MESSAGES,
    MESSAGE_FIELDS,
    PART_FIELDS,
    ROLES,
    TEXT_PARTS,
)

PART: Schema = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {**taken(PART_FIELDS), "type": {"enum": sorted(TEXT_PARTS)}, "text": {"type": "string"}},
    "additionalProperties": {"type": "null"},
}
TEXT_FORMS: list[Schema] = [{"type": "string"}, {"type": "array", "items": PART}]
CONTENT: Schema = {"anyOf": TEXT_FORMS}
MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {**taken(MESSAGE_FIELDS), "role": {"enum": list(ROLES)}, "content": CONTENT},
    "additionalProperties": {"type": "null"},
}
ANSWER: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        **taken(MESSAGE_FIELDS | HISTORY_FIELDS),
        "role": {"const": "assistant"},
        "content": {"anyOf": [*TEXT_FORMS, {"type": "null"}]},
    },
    "additionalProperties": {"type": "null"},
}
CALLED: Schema = {"name": {"type": "string"}, "arguments": {"type": "string"}}
CALL: Schema = {
    "type": "object",
    "required": ["id", "function"],
    "properties": {
        "id": {"type": "string"},
        "function": {"type": "object", "required": ["name"], "properties": CALLED},
    },
}
CALLS_MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        **taken(HISTORY_FIELDS),
        "role": {"const": "assistant"},
        "content": {"anyOf": [*TEXT_FORMS, {"type": "null"}]},
        "tool_calls": {"type": ["array", "null"], "items": CALL},
    },
}
TOOL_MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content", "tool_call_id"],
    "properties": {"role": {"const": "tool"}, "content": CONTENT, "tool_call_id": {"type": "string", "minLength": 1}},
}
CALL_ITEM: Schema = {
    "type": "object",
    "required": ["type", "call_id", "name"],
    "properties": {"type": {"const": "function_call"}, "call_id": {"type": "string", "minLength": 1}, **CALLED},
}
OUTPUT_ITEM: Schema = {
    "type": "object",
    "required": ["type", "call_id", "output"],
    "properties": {
        "type": {"const": "function_call_output"},
        "call_id": {"type": "string", "minLength": 1},
        "output": CONTENT,
    },
}
COMPACTION_ITEM: Schema = {
    "type": "object",
    "required": ["type", "encrypted_content"],
    "properties": {
        "type": {"const": "compaction"},
        "id": TEXT,
        "created_by": TEXT,
        "encrypted_content": {"type": "string", "pattern": f"^{SUMMARY_VERSION}[.]"},
    },
    "additionalProperties": {"type": "null"},
}


def several(*kinds: Schema) -> Schema:
    """Some of these, in an array."""
    return {"type": "array", "items": {"anyOf": list(kinds)}, "minItems": 1, "maxItems": MAX_MESSAGES}


INPUT: Schema = or_null({"type": "string"}, several(MESSAGE, ANSWER, CALL_ITEM, OUTPUT_ITEM, COMPACTION_ITEM))
MESSAGES = several(MESSAGE, CALLS_MESSAGE, TOOL_MESSAGE)
