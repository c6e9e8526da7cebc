"""The bodies of POST /tokenize, /detokenize and /apply-template, as llama-server and vLLM have them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.completion_request import parse_ids
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.messages import parse_messages
from unicorn_async.server.protocol.responses_request import parse_model
from unicorn_async.server.protocol.template_options import TEMPLATE_FIELDS, TemplateOptions, parse_template_options
from unicorn_async.server.protocol.tools import TOOL_FIELDS, parse_tools

if TYPE_CHECKING:
    from unicorn_async.server.protocol.fields import Fields
    from unicorn_async.tokenizer import ChatMessage

CHAT_FIELDS = TEMPLATE_FIELDS | TOOL_FIELDS | {"messages", "model"}
TOKENIZE_FIELDS = CHAT_FIELDS | {
    "add_special",
    "add_special_tokens",
    "content",
    "parse_special",
    "prompt",
    "return_token_strs",
    "with_pieces",
}


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A checked request: a text or a conversation. `with_pieces` and `with_strings` have each token's text told."""

    text: str | None
    messages: tuple[ChatMessage, ...]
    template: TemplateOptions
    add_bos: bool
    with_control: bool
    with_pieces: bool
    with_strings: bool
    model: str | None


def parse_tokenize_request(fields: Fields) -> TokenizeRequest:
    """Check a request's body: `content` is llama-server's, whose defaults it has; `prompt` and `messages` are vLLM's.

    Raises:
        ApiError: with the name of the field that is wrong or unknown.
    """
    fields.refuse_unknown(TOKENIZE_FIELDS)
    given = [key for key in ("content", "prompt", "messages") if fields.value(key) is not None]
    if len(given) != 1:
        message = f"prompt: expected one of content, prompt and messages, got {', '.join(given) or 'none'}"
        raise ApiError(message, code="missing_parameter", param="prompt")
    kind = given[0]
    option = next((key for key in sorted(TEMPLATE_FIELDS | TOOL_FIELDS) if fields.value(key) is not None), None)
    if kind != "messages" and option is not None:
        raise fields.unsupported(option, f"is for messages, and {kind} goes through no chat template")
    _refuse_others(fields, kind)
    add_special, add_special_tokens = fields.boolean("add_special"), fields.boolean("add_special_tokens")
    return TokenizeRequest(
        text=None if kind == "messages" else fields.string(kind),
        messages=parse_messages(fields) if kind == "messages" else (),
        template=_options(fields),
        add_bos=add_special is True if kind == "content" else add_special_tokens is not False,
        with_control=fields.boolean("parse_special") is not False,
        with_pieces=fields.boolean("with_pieces") is True,
        with_strings=fields.boolean("return_token_strs") is True,
        model=parse_model(fields),
    )


def _refuse_others(fields: Fields, kind: str) -> None:
    """Refuse what says how control tokens get into another kind of text than is given."""
    if kind == "messages":
        for key in ("add_special", "add_special_tokens", "parse_special"):
            if fields.boolean(key):
                raise fields.unsupported(key, "the chat template puts control tokens where they belong")
        return
    other, own = ("add_special_tokens", "add_special") if kind == "content" else ("add_special", "add_special_tokens")
    if fields.value(other) is not None:
        raise fields.unsupported(other, f"is {own} beside {kind}")


def parse_detokenize_request(fields: Fields) -> tuple[tuple[int, ...], str | None]:
    """Return the token ids and the model that is meant; raises as `parse_tokenize_request`."""
    fields.refuse_unknown(("model", "tokens"))
    return parse_ids(fields.value("tokens"), "tokens"), parse_model(fields)


def parse_template_request(fields: Fields) -> tuple[tuple[ChatMessage, ...], TemplateOptions, str | None]:
    """Return the conversation, the options and the model that is meant; raises as `parse_tokenize_request`."""
    fields.refuse_unknown(CHAT_FIELDS)
    return parse_messages(fields), _options(fields), parse_model(fields)


def _options(fields: Fields) -> TemplateOptions:
    return replace(parse_template_options(fields), use=parse_tools(fields, nested=True).use)
