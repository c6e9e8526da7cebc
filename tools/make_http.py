"""Write docs/http.md, the reference of HTTP and the websocket, from the descriptions that a server has of itself.

    python tools/make_http.py

tests/tools/test_make_http.py fails where the page is not up to date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unicorn_async.server import asyncapi, openapi
from unicorn_async.server.openapi_schemas import schemas

PAGE = Path(__file__).resolve().parent.parent / "docs" / "http.md"
HEAD = """\
# HTTP and the websocket

Made by `tools/make_http.py` from what a server describes of itself (`GET /openapi.json`, `GET /asyncapi.json`); change
that, and run it again. What fields mean beyond OpenAI's API is in [serving.md](serving.md).

null is the same as absence, for each field that is not required.
"""
_MOST_VALUES = 12  # of a field that are listed
_MOST_CHARS = 160  # of a value's description


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *_endpoints(), *_bodies(), *_websocket()]) + "\n"


def _endpoints() -> list[str]:
    lines = ["## Endpoints", "", "| | | body or query |", "|---|---|---|"]
    for one in openapi.OPERATIONS:
        asked = f"[{one.body}](#{one.body.lower()})" if one.body else ""
        asked = asked or ", ".join(f"`{name}`" for name, _ in one.query)
        key = " Needs no key." if one.is_open else ""
        lines.append(f"| `{one.method.upper()} {one.path}` | {one.summary}{key} | {asked} |")
    return [*lines, ""]


def _bodies() -> list[str]:
    lines: list[str] = []
    for name, schema in schemas().items():
        lines += [f"## {name}", ""]
        lines += _table(schema) if "properties" in schema else []
        for key, words in (("anyOf", "At least one"), ("oneOf", "Exactly one")):
            parts: Any = schema.get(key, ())
            names = [f"`{part['required'][0]}`" for part in parts]
            lines += [f"{words} of {', '.join(names)} is there.", ""] if names else []
    return lines


def _table(schema: dict[str, Any]) -> list[str]:
    required = schema.get("required", ())
    lines = ["| field | |", "|---|---|"]
    for name, described in schema["properties"].items():
        value, words = _value(described), described.get("description", "") if isinstance(described, dict) else ""
        text = "; ".join(filter(None, (value, words)))
        lines.append(f"| `{name}`{', required' if name in required else ''} | {text} |".replace("|  |", "| |"))
    return [*lines, ""]


def _websocket() -> list[str]:
    lines = ["## Messages of the websocket", "", "`/v1/responses`; each is a text frame with one JSON object.", ""]
    for title, events in (
        ("### From the client", asyncapi.CLIENT_EVENTS),
        (
            "### Of an answer; each has its `sequence_number`, and the `stream_id` of its request",
            asyncapi.ANSWER_EVENTS,
        ),
        ("### From the server beside answers", asyncapi.SERVER_EVENTS),
    ):
        lines += [title, "", "| | | fields |", "|---|---|---|"]
        if events is asyncapi.CLIENT_EVENTS:
            body = "[ResponsesRequest](#responsesrequest)"
            lines.append(f"| `response.create` | Answer this, in this stream. | {body}, `stream_id`? |")
        for name, event in events.items():
            fields = ", ".join(f"`{field}`" + ("" if field in event.required else "?") for field in event.fields)
            lines.append(f"| `{name}` | {event.summary} | {fields} |".replace("|  |", "| |"))
        lines.append("")
    return lines[:-1]


def _value(schema: Any) -> str:
    """What a schema allows, in some words; null is left out."""
    if "const" in schema or "enum" in schema:
        values = [value for value in schema.get("enum", [schema.get("const")]) if value is not None]
        shown = [f"`{json.dumps(value)}`" for value in values[:_MOST_VALUES]]
        return ", ".join(shown) + (", …" if len(values) > _MOST_VALUES else "") if shown else "null"
    if "anyOf" in schema:
        kinds = [text for part in schema["anyOf"] if (text := _value(part)) not in ("null", "")]
        return _cut(" or ".join(dict.fromkeys(kinds)))
    kinds = [kind for kind in _types(schema) if kind != "null"]
    if kinds == ["array"]:
        items = _value(schema["items"]) if "items" in schema else ""
        bound = f", at most {schema['maxItems']}" if "maxItems" in schema else ""
        return _cut(f"array of: {items}{bound}" if items else f"array{bound}")
    if "properties" in schema:
        required = schema.get("required", ())
        names = (f"`{name}`" + ("" if name in required else "?") for name in schema["properties"])
        return _cut(f"object with {', '.join(names)}")
    return " or ".join(kinds) + _bounds(schema)


def _types(schema: Any) -> list[str]:
    found = schema.get("type", [])
    return [found] if isinstance(found, str) else list(found)


def _bounds(schema: Any) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f", {low:,} to {high:,}"
    if low is not None:
        return f", at least {low:,}"
    if "exclusiveMinimum" in schema:
        return f", more than {schema['exclusiveMinimum']}, at most {high:,}"
    if "pattern" in schema:
        return f" like `{schema['pattern']}`".replace("|", r"\|")
    if "maxProperties" in schema:
        return f", at most {schema['maxProperties']:,} fields"
    return f", at most {schema['maxLength']:,} characters" if "maxLength" in schema else ""


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else text[:_MOST_CHARS].rpartition(",")[0] + ", …"


if __name__ == "__main__":
    PAGE.write_text(page())
