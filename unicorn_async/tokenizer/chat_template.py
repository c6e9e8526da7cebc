"""A model's chat template: conversations to text."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING

from jinja2 import meta
from jinja2.exceptions import SecurityError, TemplateError

from unicorn_async.errors import RequestError, TokenizerError
from unicorn_async.tokenizer.sandbox import MAX_TEXT_CHARS, TemplateSandbox

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unicorn_async.tokenizer.message import ChatMessage

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
        except (TemplateError, RecursionError, SyntaxError, ValueError) as exc:
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
    ) -> str:
        """Return the conversation as text; the template sees the `variables`, too.

        Raises:
            RequestError: the template refuses the conversation, or a role is unknown.
            TokenizerError: the template fails, or exceeds the limits of time and size.
        """
        for message in messages:
            if message.role not in ROLES:
                raise RequestError(f"role: expected one of {', '.join(sorted(ROLES))}, got {message.role!r}")
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        with self._lock:
            try:
                return self._rendered(conversation, add_generation_prompt, variables or {})
            except RequestError:
                raise
            except Exception as exc:  # whatever a template makes of the objects that it is given
                raise TokenizerError(f"chat template: {type(exc).__name__}: {exc}") from exc

    def _rendered(
        self, conversation: list[dict[str, str]], add_generation_prompt: bool, variables: Mapping[str, object]
    ) -> str:
        self._sandbox.start()
        parts: list[str] = []
        chars = 0
        for part in self._template.generate(
            {**variables, **self._variables},
            messages=conversation,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
        ):
            chars += len(part)
            if chars > MAX_TEXT_CHARS:
                raise SecurityError(f"a text of more than {MAX_TEXT_CHARS} characters")
            parts.append(part)
        return "".join(parts)
