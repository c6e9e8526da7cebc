"""A model's chat template: conversations to text."""

from __future__ import annotations

import json
import threading
from functools import cached_property
from typing import TYPE_CHECKING

from jinja2 import meta
from jinja2.exceptions import SecurityError, TemplateError

from unicorn_async.errors import RequestError, TokenizerError
from unicorn_async.tokenizer.sandbox import MAX_TEXT_CHARS, TemplateSandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from unicorn_async.tokenizer.message import ChatMessage

_CHANNEL, _THOUGHT_CHANNEL = "<|channel|>", "<|channel>thought"
ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))


class ChatTemplate:
    """A Jinja template from a model's directory, which is not trusted; thread-safe.

    `variables` are the special tokens that templates refer to by name (`bos_token` …).

    Raises:
        TokenizerError: the template is not valid.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self.source = source
        self._variables = dict(variables)
        self._sandbox = TemplateSandbox()
        self._lock = threading.Lock()
        try:
            self._template = self._sandbox.template(source)
        except (TemplateError, RecursionError, SyntaxError, ValueError, MemoryError) as exc:
            raise TokenizerError(f"chat template: {exc}") from exc

    @cached_property
    def names(self) -> frozenset[str]:
        """Names that the template asks for and does not set itself."""
        return frozenset(meta.find_undeclared_variables(self._sandbox.parse(self.source)))

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, object] | None = None,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> str:
        """Return the conversation as text; the template sees the `variables`, and `tools` as OpenAI's API has them.

        Raises:
            RequestError: the template refuses the conversation, or a role is unknown.
            TokenizerError: the template fails, or exceeds the limits of time and size.
        """
        for message in messages:
            if message.role not in ROLES:
                raise RequestError(f"role: expected one of {', '.join(sorted(ROLES))}, got {message.role!r}")
        with self._lock:
            try:
                return self._with_calls(messages, add_generation_prompt, variables or {}, tools)
            except RequestError:
                raise
            except Exception as exc:  # whatever a template makes of the objects that it is given
                raise TokenizerError(f"chat template: {type(exc).__name__}: {exc}") from exc

    def _with_calls(
        self,
        messages: Sequence[ChatMessage],
        add_generation_prompt: bool,
        variables: Mapping[str, object],
        tools: Sequence[Mapping[str, object]],
    ) -> str:
        """Render with the arguments of calls as objects, or as text where the template joins them to other texts."""
        try:
            return self._rendered(self._conversation(messages, _arguments), add_generation_prompt, variables, tools)
        except TypeError:
            if not any(message.tool_calls for message in messages):
                raise
            return self._rendered(self._conversation(messages, str), add_generation_prompt, variables, tools)

    def _rendered(
        self,
        conversation: list[dict[str, object]],
        add_generation_prompt: bool,
        variables: Mapping[str, object],
        tools: Sequence[Mapping[str, object]],
    ) -> str:
        self._sandbox.start()
        parts: list[str] = []
        chars = 0
        for part in self._template.generate(
            {**variables, **self._variables},
            messages=conversation,
            tools=tools or None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
        ):
            chars += len(part)
            if chars > MAX_TEXT_CHARS:
                raise SecurityError(f"a text of more than {MAX_TEXT_CHARS} characters")
            parts.append(part)
        return "".join(parts)

    def _conversation(
        self, messages: Sequence[ChatMessage], arguments: Callable[[str], object]
    ) -> list[dict[str, object]]:
        """The messages as templates know them; a tool's message has the tool's name, too.

        Thoughts before a call are for templates with channels: gpt-oss's take them or a text, Gemma 4's both.
        """
        found: list[dict[str, object]] = []
        names: dict[str | None, str] = {}
        for message in messages:
            entry: dict[str, object] = {"role": message.role, "content": message.content}
            if message.tool_calls:
                names.update((call.id, call.name) for call in message.tool_calls)
                entry["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": arguments(call.arguments)},
                    }
                    for call in message.tool_calls
                ]
                if message.thoughts and not message.content and _CHANNEL in self.source:
                    entry["thinking"] = message.thoughts
                if message.thoughts and _THOUGHT_CHANNEL in self.source:
                    entry["reasoning_content"] = message.thoughts
            if message.tool_call_id is not None:
                entry |= {"tool_call_id": message.tool_call_id, "name": names.get(message.tool_call_id, "")}
            found.append(entry)
        return found


def _arguments(text: str) -> object:
    """Arguments as the object that templates expect, where clients may leave out an empty one; other text stays."""
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
