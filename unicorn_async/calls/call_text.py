"""Calls as text, for templates that write what was said and leave calls out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from unicorn_async.calls import separated
from unicorn_async.calls.call_format import CallKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.calls.call_format import CallFormat


def calls_text(form: CallFormat, calls: Sequence[tuple[str, str]]) -> str:
    """Return calls, names with arguments as JSON, as a model of this form writes them."""
    match form.kind:
        case CallKind.PYTHON:
            return f"{form.opening}[{', '.join(_python_call(*call) for call in calls)}]{form.closing}"
        case CallKind.LISTED:
            return f"{form.opening}[{', '.join(_json_call(*call) for call in calls)}]"
        case CallKind.SEPARATED:
            between = "\n" if form.is_lined else ""
            written = [_separated_call(*call, is_fenced=form.is_lined) for call in calls]
            return f"{form.opening}{between.join(written)}{form.closing}"
        case _:
            return "\n".join(f"<tool_call>\n{_json_call(*call)}\n</tool_call>" for call in calls)


def _json_call(name: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'


def _separated_call(name: str, arguments: str, *, is_fenced: bool) -> str:
    before, behind = separated.around(name, is_fenced=is_fenced)
    last = separated.FENCE[1] if is_fenced else ""
    return f"{separated.CALL[0]}{before}{separated.SEPARATOR}{behind}{arguments}{last}{separated.CALL[1]}"


def _python_call(name: str, arguments: str) -> str:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return f"{name}({arguments})"
    written = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in found.items())
    return f"{name}({', '.join(written)})"
