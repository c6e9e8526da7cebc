"""How a conversation becomes a prompt, as far as a request may say."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypedDict

from unicorn_async.calls.tool import ToolUse
from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.server.protocol.fields import Fields
    from unicorn_async.tokenizer import Tokenizer

TEMPLATE_FIELDS = frozenset({"add_generation_prompt", "chat_template_kwargs", "continue_final_message"})
MAX_VARIABLES = 32
# A text becomes a part of the template's own, whose control tokens are none of a client's business.
_PLAIN_TEXT = re.compile(r"[\w .,:/+-]{0,256}")
OWN = frozenset({"add_generation_prompt", "documents", "messages", "tools"})


class EncodeOptions(TypedDict):
    """Arguments of `Tokenizer.encode_chat` and `chat_text`."""

    add_generation_prompt: bool
    continue_final: bool
    variables: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """The options; `variables` are further ones that the template sees."""

    add_generation_prompt: bool = True
    continue_final: bool = False
    variables: Mapping[str, object] = field(default_factory=dict)
    use: ToolUse = field(default_factory=ToolUse)  # the tools that the model is told of

    def beside(self, variables: Mapping[str, object]) -> TemplateOptions:
        """Return the options with further variables; those that a request names itself go before them."""
        return replace(self, variables={**variables, **self.variables}) if variables else self

    def checked(self, tokenizer: Tokenizer) -> EncodeOptions:
        """Return the arguments for a model's tokenizer; switching off what the template never does is no error.

        Raises:
            ApiError: the model's template has no such variable.
        """
        known = tokenizer.template_names if self.variables else frozenset()  # the first look at them takes a while
        for name, value in self.variables.items():
            if name not in known and value not in (None, False):
                param = f"chat_template_kwargs.{name}"
                raise ApiError(
                    f"{param}: the model's template has no such variable", code="unsupported_value", param=param
                )
        return {
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final": self.continue_final,
            "variables": self.variables,
        }


def parse_template_options(fields: Fields) -> TemplateOptions:
    """Check a request's options.

    Raises:
        ApiError: a value of the wrong type, or two that contradict each other.
    """
    continue_final = fields.boolean("continue_final_message") is True
    wanted = fields.boolean("add_generation_prompt")
    if continue_final and wanted:
        raise fields.unsupported("continue_final_message", "does not go with add_generation_prompt")
    return TemplateOptions(not continue_final and wanted is not False, continue_final, _variables(fields))


def _variables(fields: Fields) -> dict[str, object]:
    given = fields.object("chat_template_kwargs")
    if given is None:
        return {}
    keys = given.keys()
    if len(keys) > MAX_VARIABLES:
        message = f"chat_template_kwargs: expected at most {MAX_VARIABLES} variables, got {len(keys)}"
        raise ApiError(message, code="invalid_value", param="chat_template_kwargs")
    given.refuse_unknown([key for key in keys if key.isidentifier() and key not in OWN])
    found: dict[str, object] = {}
    for key in keys:
        value = given.value(key)
        if isinstance(value, str) and not _PLAIN_TEXT.fullmatch(value):
            raise given.wrong(key, "up to 256 letters, digits, spaces and . , : / + -", code="invalid_value")
        if not isinstance(value, str | bool | int | float | None):
            raise given.wrong(key, "a boolean, a number or a string")
        found[key] = value
    return found
