"""What a request wants its answer to look like: OpenAI's formats, and grammars beyond them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.calls.named_arguments import named_alone
from unicorn_async.errors import GrammarError
from unicorn_async.grammar import Grammar, GrammarKind
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import Fields, checked_text, type_name

if TYPE_CHECKING:
    from collections.abc import Callable

FORMAT_FIELDS = frozenset({"structured_outputs"})  # beside those of OpenAI's API, which are read by their own names
_STRUCTURED = ("json", "json_object", "regex", "choice", "grammar")
_SCHEMA_FIELDS = ("description", "name", "schema", "strict")
_TYPES = "text, json_object, json_schema or grammar"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """A grammar, the field that is to blame where it can't be used, and the format as the answer tells it."""

    grammar: Grammar | None = None
    name: str = ""
    shown: dict[str, object] = field(default_factory=lambda: {"type": "text"})

    def refusal(self, reason: GrammarError) -> ApiError:
        """Return the error that names the field."""
        is_schema = self.grammar is not None and self.grammar.kind is GrammarKind.JSON_SCHEMA
        code = "invalid_json_schema" if is_schema else "invalid_grammar"
        return ApiError(f"{self.name}: {reason}", code=code, param=self.name)


def parse_text_format(fields: Fields) -> AnswerFormat:
    """Return what a Responses request has in `text.format` or `structured_outputs`."""
    text = fields.object("text")
    return _one_of(fields, None if text is None else text.object("format"), schema_key=None)


def parse_response_format(fields: Fields) -> AnswerFormat:
    """Return what a Chat Completions request has in `response_format` or `structured_outputs`."""
    return _one_of(fields, fields.object("response_format"), schema_key="json_schema")


def _one_of(fields: Fields, wanted: Fields | None, *, schema_key: str | None) -> AnswerFormat:
    structured = fields.object("structured_outputs")
    found = AnswerFormat() if wanted is None else _format(wanted, schema_key)
    if structured is None:
        return found
    if found.grammar is not None:
        raise fields.unsupported("structured_outputs", "the request has a format of the answer already")
    return _structured(structured)


def _format(wanted: Fields, schema_key: str | None) -> AnswerFormat:
    kind = wanted.string("type")
    if kind in (None, "text"):
        wanted.refuse_unknown_values(("type",))
        return AnswerFormat()
    if kind == "json_object":
        return _json_object(wanted)
    if kind == "json_schema":
        if schema_key is not None:
            wanted.refuse_unknown_values(("type", schema_key))
        inner = wanted if schema_key is None else wanted.object(schema_key)
        if inner is None:
            raise wanted.wrong(schema_key or "", "an object")
        inner.refuse_unknown_values(_SCHEMA_FIELDS if inner is not wanted else {"type", *_SCHEMA_FIELDS})
        return _json_schema(inner)
    if kind == "grammar":
        return _syntax(wanted)
    raise wanted.wrong("type", _TYPES, code="invalid_value")


def _json_object(wanted: Fields) -> AnswerFormat:
    """Return any JSON object, or one of a schema in the form of llama-server."""
    wanted.refuse_unknown_values(("schema", "type"))
    schema, shown = wanted.object("schema"), {"type": "json_object"}
    if schema is None:
        return AnswerFormat(Grammar.json_object(), wanted.name("type"), {**shown})
    grammar = _made(wanted.name("schema"), lambda: Grammar.json_schema(schema.data, strict=False))
    return AnswerFormat(grammar, wanted.name("schema"), {**shown, "schema": schema.data})


def _json_schema(wanted: Fields) -> AnswerFormat:
    name = wanted.string("name")
    if name is not None and _NAME.fullmatch(name) is None:
        raise wanted.wrong("name", "1 to 64 letters, digits, underscores and hyphens", code="invalid_value")
    schema, strict = wanted.object("schema"), wanted.boolean("strict")
    if schema is None:
        raise wanted.wrong("schema", "an object")
    shown: dict[str, object] = {
        "type": "json_schema",
        "name": name,
        "description": wanted.string("description"),
        "schema": schema.data,
        "strict": strict,
    }
    data = named_alone(schema.data) if strict else schema.data  # OpenAI's strict schemas leave no object open
    grammar = _made(wanted.name("schema"), lambda: Grammar.json_schema(data, strict=strict is True))
    return AnswerFormat(grammar, wanted.name("schema"), shown)


def _syntax(wanted: Fields) -> AnswerFormat:
    """Return a grammar in the form of OpenAI's custom tools."""
    wanted.refuse_unknown_values(("definition", "syntax", "type"))
    definition, syntax = wanted.string("definition"), wanted.string("syntax")
    if definition is None:
        raise wanted.wrong("definition", "a string")
    makers = {"lark": Grammar.lark, "regex": Grammar.regex}
    if syntax not in makers:
        raise wanted.wrong("syntax", "lark or regex", code="invalid_value")
    grammar = _made(wanted.name("definition"), lambda: makers[syntax](definition))
    shown: dict[str, object] = {"type": "grammar", "syntax": syntax, "definition": definition}
    return AnswerFormat(grammar, wanted.name("definition"), shown)


def _structured(wanted: Fields) -> AnswerFormat:
    """Return a grammar in the form of vLLM's `structured_outputs`."""
    wanted.refuse_unknown(_STRUCTURED)
    given = [key for key in _STRUCTURED if wanted.value(key) not in (None, False)]
    if len(given) != 1:
        what = "none of them" if not given else " and ".join(given)
        message = f"structured_outputs: expected one of {', '.join(_STRUCTURED)}, got {what}"
        raise ApiError(message, code="invalid_value", param="structured_outputs")
    key = given[0]
    grammar = _made(wanted.name(key), lambda: _structured_grammar(wanted, key))
    return AnswerFormat(grammar, wanted.name(key))


def _structured_grammar(wanted: Fields, key: str) -> Grammar:
    value = wanted.value(key)
    if key == "json_object":
        wanted.boolean(key)
        return Grammar.json_object()
    if key == "json":
        if not isinstance(value, str | dict):
            raise wanted.wrong(key, "an object or a string")
        return Grammar.json_schema(value, strict=False)
    if key == "choice":
        return Grammar.choice(_texts(wanted, key))
    text = wanted.string(key)
    assert text is not None, "it is among the given ones"
    return Grammar.regex(text) if key == "regex" else Grammar.lark(text)


def _texts(wanted: Fields, key: str) -> list[str]:
    found: list[str] = []
    for index, text in enumerate(wanted.array(key) or []):
        name = f"{wanted.name(key)}[{index}]"
        if not isinstance(text, str):
            raise ApiError(f"{name}: expected a string, got {type_name(text)}", code="invalid_type", param=name)
        found.append(checked_text(text, name))
    return found


def _made(name: str, make: Callable[[], Grammar]) -> Grammar:
    try:
        return make()
    except GrammarError as exc:
        raise ApiError(f"{name}: {exc}", code="invalid_grammar", param=name) from exc
