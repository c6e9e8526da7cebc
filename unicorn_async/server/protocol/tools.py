"""Tools of a request, as both APIs spell them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.calls.tool import Tool, ToolMode, ToolUse
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import Fields, type_name

if TYPE_CHECKING:
    from collections.abc import Collection

TOOL_FIELDS = frozenset({"tool_choice", "tools"})
MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CHOICES = "none, auto, required or an object that names a function, or allowed_tools"


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """What a request says of tools, and how an answer tells it; `names` are of each tool's parameters, for refusals."""

    use: ToolUse = field(default_factory=ToolUse)
    names: tuple[str, ...] = ()
    shown_tools: list[object] = field(default_factory=list)
    shown_choice: object = "auto"


def parse_tools(fields: Fields, *, nested: bool) -> ToolRequest:
    """Return the tools of a request; those of chat completions are `nested` in an object `function`.

    Raises:
        ApiError: with the name of the field that is wrong.
    """
    items = fields.array("tools") or []
    if len(items) > MAX_TOOLS:
        raise ApiError(f"tools: expected at most {MAX_TOOLS}, got {len(items)}", code="invalid_value", param="tools")
    tools: list[Tool] = []
    names: list[str] = []
    for index, item in enumerate(items):
        found = _parse_tool(item, f"tools[{index}]", nested=nested)
        if found.name in (tool.name for tool in tools):
            raise ApiError(
                f"tools[{index}]: {found.name!r} is there twice", code="invalid_value", param=f"tools[{index}]"
            )
        tools.append(found)
        names.append(f"tools[{index}].function.parameters" if nested else f"tools[{index}].parameters")
    mode, allowed = _parse_choice(fields, {tool.name for tool in tools}, nested=nested)
    shown_choice = fields.value("tool_choice")
    return ToolRequest(
        use=ToolUse(tuple(tools), mode, allowed, parallel=fields.boolean("parallel_tool_calls") is not False),
        names=tuple(names),
        shown_tools=[_shown(tool) for tool in tools],
        shown_choice="auto" if shown_choice is None else shown_choice,
    )


FUNCTION_FIELDS = frozenset({"description", "name", "parameters", "strict"})


def _shown(tool: Tool) -> dict[str, object]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description or None,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def _parse_tool(item: object, name: str, *, nested: bool) -> Tool:
    if not isinstance(item, dict):
        raise ApiError(f"{name}: expected an object, got {type_name(item)}", code="invalid_type", param=name)
    fields: Fields | None = Fields(item, name)
    assert fields is not None
    kind = fields.string("type")
    if kind != "function":
        raise fields.unsupported("type", f"tools of type {kind!r} are not supported; this server takes functions")
    inner = fields.object("function") if nested else fields
    if inner is None:
        raise fields.wrong("function", "an object")
    if nested:
        fields.refuse_unknown_values(("cache_control", "function", "type"))
    inner.refuse_unknown_values(FUNCTION_FIELDS if nested else FUNCTION_FIELDS | {"output_schema", "type"})
    called = inner.string("name")
    if called is None or _NAME.fullmatch(called) is None:
        raise inner.wrong("name", "1 to 64 letters, digits, underscores and hyphens", code="invalid_value")
    parameters = inner.object("parameters")
    schema: dict[str, object] = {"type": "object", "properties": {}} if parameters is None else parameters.data
    if (type_of := schema.get("type", "object")) != "object":  # arguments have names, for clients to take them apart
        message = f"{inner.name('parameters')}: expected a schema of type object, got {repr(type_of)[:80]}"
        raise ApiError(message, code="invalid_function_parameters", param=inner.name("parameters"))
    return Tool(called, inner.string("description") or "", schema, inner.boolean("strict") is True)


def _parse_choice(fields: Fields, names: Collection[str], *, nested: bool) -> tuple[ToolMode, frozenset[str] | None]:
    value = fields.value("tool_choice")
    if value is None:
        return ToolMode.AUTO, None
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            raise fields.wrong("tool_choice", _CHOICES, code="invalid_value")
        mode = ToolMode(value)
        if mode is ToolMode.REQUIRED and not names:
            raise fields.unsupported("tool_choice", "a call is required, and there are no tools")
        return mode, None
    choice = fields.object("tool_choice")
    assert choice is not None, "it is there"
    kind = choice.string("type")
    if kind == "function":
        choice.refuse_unknown_values(("type", "function" if nested else "name"))
        return ToolMode.REQUIRED, frozenset((_named(choice, names, nested=nested),))
    if kind == "allowed_tools":
        return _parse_allowed(choice, names, nested=nested)
    raise choice.unsupported("type", f"expected function or allowed_tools, got {kind!r}")


def _parse_allowed(choice: Fields, names: Collection[str], *, nested: bool) -> tuple[ToolMode, frozenset[str] | None]:
    inner = choice.object("allowed_tools") if nested else choice
    if inner is None:
        raise choice.wrong("allowed_tools", "an object")
    if nested:
        choice.refuse_unknown_values(("allowed_tools", "type"))
    inner.refuse_unknown_values(("mode", "tools") if nested else ("mode", "tools", "type"))
    mode = inner.string("mode") or "auto"
    if mode not in ("auto", "required"):
        raise inner.wrong("mode", "auto or required", code="invalid_value")
    found: set[str] = set()
    for index, item in enumerate(inner.array("tools") or []):
        name = f"{inner.name('tools')}[{index}]"
        if not isinstance(item, dict):
            raise ApiError(f"{name}: expected an object, got {type_name(item)}", code="invalid_type", param=name)
        allowed = Fields(item, name)
        allowed.refuse_unknown_values(("type", "function" if nested else "name"))
        found.add(_named(allowed, names, nested=nested))
    if not found:
        raise inner.wrong("tools", "at least one tool", code="invalid_value")
    return ToolMode(mode), frozenset(found)


def _named(fields: Fields, names: Collection[str], *, nested: bool) -> str:
    inner = fields.object("function") if nested else fields
    if inner is None:
        raise fields.wrong("function", "an object")
    if nested:
        inner.refuse_unknown_values(("name",))
    name = inner.string("name")
    if name not in names or name is None:
        raise inner.wrong("name", "the name of one of the tools", code="invalid_value")
    return name
