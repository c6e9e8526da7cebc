"""How a model writes calls, told by its chat template."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from unicorn_async.calls import separated
from unicorn_async.calls.harmony import is_harmony


class CallKind(Enum):
    """What a call looks like in the text of an answer."""

    TAGGED = "tagged"  # <tool_call>{"name": …, …}</tool_call>: Hermes, Qwen, and whom the system text tells so
    BARE = "bare"  # {"name": …, "parameters": …} is the whole answer: Llama 3
    LISTED = "listed"  # [TOOL_CALLS][{"name": …, "arguments": …}]: Mistral
    NAMED = "named"  # [TOOL_CALLS]name[ARGS]{…}: Mistral's later templates
    XML = "xml"  # <function=name><parameter=key>value</parameter></function>: Qwen3-Coder, Qwen3.5, Seed-OSS
    KEYED = "keyed"  # <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>: GLM 4.5
    HARMONY = "harmony"  # a message to=functions.name in a channel of its own: gpt-oss, see harmony.py
    BRACED = "braced"  # <|tool_call>call:name{key:<|"|>value<|"|>}<tool_call|>: Gemma 4
    SEPARATED = "separated"  # <｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>: DeepSeek, see separated.py
    PYTHON = "python"  # [name(key="value"), …]: Llama 3.2 and others that are told so; in tags, Olmo 3 and LFM2


_TOOL_CALL = ("<tool_call>", "</tool_call>")
_SEED_CALL = ("<seed:tool_call>", "</seed:tool_call>")
_FUNCTION_CALLS = ("<function_calls>", "</function_calls>")
_GRANITE_CALLS = ("<|tool_call|>", "")
_BRACED_CALL = ("<|tool_call>", "<tool_call|>")
_LFM2_CALLS = ("<|tool_call_start|>", "<|tool_call_end|>")
_MARKS = {
    CallKind.TAGGED: _TOOL_CALL,
    CallKind.BARE: ("", ""),
    CallKind.LISTED: ("[TOOL_CALLS]", ""),
    CallKind.NAMED: ("[TOOL_CALLS]", ""),
    CallKind.XML: _TOOL_CALL,
    CallKind.KEYED: _TOOL_CALL,
    CallKind.HARMONY: ("", ""),
    CallKind.BRACED: _BRACED_CALL,
    CallKind.SEPARATED: separated.CALLS,
    CallKind.PYTHON: ("", ""),
}
_INNER_MARKS = {
    CallKind.NAMED: ("[ARGS]", "[CALL_ID]"),
    CallKind.BARE: ("<|python_tag|>",),
    CallKind.KEYED: ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    CallKind.BRACED: ('<|"|>',),
    CallKind.SEPARATED: (*separated.CALL, separated.SEPARATOR),
    CallKind.PYTHON: ("<|python_tag|>", "<|python_start|>", "<|python_end|>"),
}
_LINED_VALUE = re.compile(r"<parameter=[^<>]{0,64}>(?:\\n|\n)")

# In words to the model, or where the template writes calls.
_PYTHON_LIST = re.compile(r"\[func_name1\(|(?:call|\btc)\.name \+ ['\"]\(['\"]")
_LFM2_TOOLS = ("<|tool_list_start|>", "List of tools: [")


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A form of calls; where the template `takes_tools`, it tells the model of them, else the system text does.

    `marks` stand around calls where they are others than usual. What `is_lined` has lines of its own: each value of the
    XML form, each call of Python's, which are a list otherwise, a separated call's arguments, in a fence.
    """

    kind: CallKind
    takes_tools: bool
    marks: tuple[str, str] | None = None
    is_lined: bool = False
    takes_calls: bool = True  # that are in a conversation; else they are text of the messages

    @property
    def opening(self) -> str:
        """What begins calls; none where they are the whole answer."""
        return (self.marks or _MARKS[self.kind])[0]

    @property
    def closing(self) -> str:
        """What ends a call; none where the end of its JSON does."""
        return (self.marks or _MARKS[self.kind])[1]

    @property
    def is_written(self) -> bool:
        """Whether arguments are written one by one, and are no JSON object."""
        return self.kind in (CallKind.XML, CallKind.KEYED, CallKind.BRACED, CallKind.PYTHON)

    @property
    def arguments_key(self) -> str:
        """The key of the arguments beside that of the name."""
        return "parameters" if self.kind is CallKind.BARE else "arguments"

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings that control tokens may stand for, which otherwise have no text."""
        return tuple(text for text in (self.opening, self.closing, *_INNER_MARKS.get(self.kind, ())) if text)


def call_format(template: str | None) -> CallFormat:
    """Return the form that a model's chat template writes calls in, or the general one for those that know of none."""
    found = None
    if template is not None and separated.CALLS[0] in template:
        found = _separated(template)
    elif template is not None and "tools" in template:
        found = _own_format(template)
    return found or CallFormat(CallKind.TAGGED, takes_tools=False)


def _separated(template: str) -> CallFormat | None:
    takes_tools = "tools" in template
    if not takes_tools and not separated.writes_calls(template):
        return None
    return CallFormat(CallKind.SEPARATED, takes_tools=takes_tools, is_lined="```json" in template)


def _own_format(template: str) -> CallFormat | None:
    if is_harmony(template):
        return CallFormat(CallKind.HARMONY, takes_tools=True)
    if "[TOOL_CALLS]" in template:
        return CallFormat(CallKind.NAMED if "[ARGS]" in template else CallKind.LISTED, takes_tools=True)
    if f"{_BRACED_CALL[0]}call:" in template:
        return CallFormat(CallKind.BRACED, takes_tools=True)
    if "<function=" in template and "<parameter=" in template:
        marks = _SEED_CALL if _SEED_CALL[0] in template else None
        is_lined = marks is None or _LINED_VALUE.search(template) is not None
        return CallFormat(CallKind.XML, takes_tools=True, marks=marks, is_lined=is_lined)
    if "<tool_call>" in template and "<arg_key>" in template:
        return CallFormat(CallKind.KEYED, takes_tools=True)
    if "<tool_call>" in template and "<function=" not in template:
        return CallFormat(CallKind.TAGGED, takes_tools=True)
    if _FUNCTION_CALLS[0] in template:
        return CallFormat(CallKind.PYTHON, takes_tools=True, marks=_FUNCTION_CALLS, is_lined=True)
    takes_calls = "tool_calls" in template
    if any(mark in template for mark in (*_LFM2_CALLS, *_LFM2_TOOLS)):
        return CallFormat(CallKind.PYTHON, takes_tools=True, marks=_LFM2_CALLS, takes_calls=takes_calls)
    if _GRANITE_CALLS[0] in template and "available_tools" in template:
        return CallFormat(CallKind.LISTED, takes_tools=True, marks=_GRANITE_CALLS, takes_calls=takes_calls)
    if _PYTHON_LIST.search(template):
        return CallFormat(CallKind.PYTHON, takes_tools=True)
    if '"parameters"' in template and "ipython" in template:
        return CallFormat(CallKind.BARE, takes_tools=True)
    return None
