"""How an answer with tools is asked for and read: by the model's own form of calls, or one that it is told."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.calls.call_format import CallFormat, CallKind, call_format
from unicorn_async.calls.call_grammar import call_grammar
from unicorn_async.calls.call_reader import CallReader
from unicorn_async.calls.call_text import calls_text
from unicorn_async.calls.calls_alone import CallsAlone
from unicorn_async.calls.harmony import is_harmony, marks_of
from unicorn_async.calls.harmony_reader import HarmonyReader
from unicorn_async.calls.tool import ToolMode
from unicorn_async.errors import GrammarError
from unicorn_async.grammar import Grammar, GrammarKind
from unicorn_async.server.protocol.chat_answer import ChatAnswer
from unicorn_async.server.protocol.chat_calls import CallingChatAnswer
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.responses_answer import ResponsesAnswer
from unicorn_async.server.protocol.responses_calls import CallingResponsesAnswer
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.calls.calls_alone import AnswerReader
    from unicorn_async.calls.tool import ToolUse
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.server.protocol.answer_format import AnswerFormat
    from unicorn_async.server.protocol.chat_request import ChatRequest
    from unicorn_async.server.protocol.completion_object import CompletionHead
    from unicorn_async.server.protocol.reasoning import Reasoning
    from unicorn_async.server.protocol.response_object import ResponseState
    from unicorn_async.server.protocol.responses_request import ResponsesRequest
    from unicorn_async.server.protocol.thoughts import Splitter
    from unicorn_async.server.protocol.tools import ToolRequest
    from unicorn_async.server.served_model import ServedModel
    from unicorn_async.tokenizer import Tokenizer

_SYSTEM_TEXT = """\
You can call functions. To call one, write nothing but this, once for each call:
<tool_call>
{"name": "the function's name", "arguments": {"an argument's name": "its value"}}
</tool_call>
What a function returns comes back within <tool_response></tool_response>. The functions, one a line, with JSON \
schemas of their arguments:
"""
_OWN_TEXT = """\
You can call functions. To call some, write nothing but this, the part between the inner marks once for each call:
{calls}
The functions, one a line, with JSON schemas of their arguments:
"""
_MISTRAL_ID_CHARS = 9  # its templates refuse others


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """A request's tools and a model's form of calls; `markers` are the control tokens that this form uses."""

    use: ToolUse
    form: CallFormat
    markers: dict[int, str]

    @classmethod
    def of(cls, tokenizer: Tokenizer, use: ToolUse) -> ToolPlan:
        """Look up what the model's chat template and vocabulary say of calls."""
        form = call_format(tokenizer.chat_template)
        if is_harmony(tokenizer.chat_template):
            return cls(use, form, marks_of(tokenizer.control_id))
        ids = ((tokenizer.control_id(text), text) for text in form.markers)
        return cls(use, form, {token_id: text for token_id, text in ids if token_id is not None})

    @property
    def told(self) -> dict[str, list[dict[str, object]]]:
        """What the chat template is given beside a conversation: the tools to tell the model of, if there are some."""
        tools = self.use.callable if self.form.takes_tools else ()
        return {"tools": [tool.to_json() for tool in tools]} if tools else {}

    def reader(self) -> AnswerReader | None:
        """Return what reads the answer's calls; None where it can't have any."""
        tools = {tool.name: tool.parameters for tool in self.use.callable}
        if not tools:
            return None
        reader = HarmonyReader() if self.form.kind is CallKind.HARMONY else CallReader(self.form, tools)
        return CallsAlone(reader) if self.use.mode is ToolMode.REQUIRED else reader

    def grammar(self, wanted: AnswerFormat) -> Grammar | None:
        """Return what the answer has to follow, be it calls or the wanted form.

        Raises:
            ApiError: they can't go together.
            GrammarError: both together are too large.
        """
        schema = wanted.grammar
        if self.form.kind is CallKind.HARMONY and schema is not None and not self.use.callable:
            return self._in_channels(schema)
        if not self.use.callable or (schema is None and not self.use.is_guided):
            return schema
        control = {text: token_id for token_id, text in self.markers.items()}
        if schema is None or self.use.mode is ToolMode.REQUIRED:
            return call_grammar(self.use, self.form, control)
        if schema.kind is not GrammarKind.JSON_SCHEMA:
            message = f"{wanted.name}: only JSON schemas go together with tools that may be called"
            raise ApiError(message, code="unsupported_value", param=wanted.name)
        return call_grammar(self.use, self.form, control, json.loads(schema.source))

    def refusal(self, wanted: AnswerFormat, reason: GrammarError) -> ApiError:
        """Return the error that names the field where the answer's grammar comes from."""
        if not self.use.callable:
            return wanted.refusal(reason)
        return ApiError(f"tools: {reason}", code="invalid_function_parameters", param="tools")

    def _in_channels(self, schema: Grammar) -> Grammar:
        """Return the grammar of an answer of a form behind thoughts; other than JSON schemas hold for all of it."""
        found = json.loads(schema.source) if schema.kind is GrammarKind.JSON_SCHEMA else None
        if not isinstance(found, dict):
            return schema
        control = {text: token_id for token_id, text in self.markers.items()}
        return call_grammar(self.use, self.form, control, found, is_strict=schema.strict)

    def splitter(
        self, reasoning: Reasoning, tokenizer: Tokenizer, prompt: Sequence[int], wanted: AnswerFormat
    ) -> Splitter | None:
        """Return what tells the model's thoughts and its answer apart; None where no thoughts may come.

        A form holds from the first token on, but in channels.
        """
        in_channels = self.form.kind is CallKind.HARMONY
        if not in_channels and (wanted.grammar is not None or self.use.mode is ToolMode.REQUIRED):
            return None
        return reasoning.splitter(tokenizer, prompt, frozenset(tool.name for tool in self.use.callable))

    def conversation(self, messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
        """Return a conversation as the chat template takes it, its system message at the start."""
        if not self.form.takes_calls:
            return tuple(_with_calls(message, self.form) for message in messages)
        if self.form.kind in (CallKind.LISTED, CallKind.NAMED):
            return tuple(_with_short_ids(message) for message in messages)
        if self.form.takes_tools:
            return tuple(messages)
        if self.form.kind is CallKind.TAGGED:
            return self._told(messages)
        example = calls_text(self.form, [("function_name", '{"an argument\'s name": "its value"}')])
        return self._with_tools(messages, _OWN_TEXT.format(calls=example))

    def _with_tools(self, messages: Sequence[ChatMessage], text: str) -> tuple[ChatMessage, ...]:
        """The tools in the system message, behind a text about them."""
        if not self.use.callable:
            return tuple(messages)
        text += "\n".join(json.dumps(tool.to_json()["function"]) for tool in self.use.callable)
        head = messages[0] if messages and messages[0].role == "system" else None
        first = ChatMessage("system", text if head is None else f"{head.content}\n\n{text}")
        return (first, *(messages if head is None else messages[1:]))

    def _told(self, messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
        """Calls, and what they returned, as text; the tools in the system message."""
        found: list[ChatMessage] = []
        after_tool = False
        for message in self._with_tools(messages, _SYSTEM_TEXT):
            is_tool = message.role == "tool"
            said = _as_text(message)
            if after_tool and said.role == "user":  # templates want turns
                found[-1] = replace(found[-1], content=f"{found[-1].content}\n{said.content}")
            else:
                found.append(said)
            after_tool = is_tool or (after_tool and said.role == "user")
        return tuple(found)


def responses_answer(
    plan: ToolPlan,
    state: ResponseState,
    tokenizer: Tokenizer,
    *,
    stream_id: str | None,
    splitter: Splitter | None,
) -> ResponsesAnswer:
    """Return what encodes a response, which reads its calls where it may have some."""
    reader, token_bytes = plan.reader(), tokenizer.token_bytes
    if reader is None:
        return ResponsesAnswer(state, token_bytes, stream_id=stream_id, splitter=splitter)
    markers, parallel = plan.markers, plan.use.parallel
    return CallingResponsesAnswer(
        state, token_bytes, reader, markers, parallel=parallel, stream_id=stream_id, splitter=splitter
    )


def chat_answer(
    plan: ToolPlan,
    head: CompletionHead,
    index: int,
    tokenizer: Tokenizer,
    *,
    wants_logprobs: bool,
    splitter: Splitter | None,
) -> ChatAnswer:
    """Return what encodes a choice of a chat completion, likewise."""
    reader, token_bytes = plan.reader(), tokenizer.token_bytes
    if reader is None:
        return ChatAnswer(head, index, token_bytes, wants_logprobs=wants_logprobs, splitter=splitter)
    return CallingChatAnswer(
        head,
        index,
        token_bytes,
        reader,
        plan.markers,
        parallel=plan.use.parallel,
        wants_logprobs=wants_logprobs,
        splitter=splitter,
    )


async def with_grammar(model: ServedModel, plan: ToolPlan, request: ResponsesRequest | ChatRequest) -> SamplingParams:
    """Return the sampling parameters of a request with the grammar that its answer follows, compiled.

    Raises:
        ApiError: it can't be used, and the field is named; or the engine has failed.
        GrammarLostError: the process that compiles it has ended.
        EngineClosedError: the model is on its way out.
    """
    grammar = await _checked_grammar(model, plan, request.tools, request.format)
    return request.sampling if grammar is None else replace(request.sampling, grammar=grammar)


async def _checked_grammar(
    model: ServedModel, plan: ToolPlan, tools: ToolRequest, wanted: AnswerFormat
) -> Grammar | None:
    try:
        grammar = plan.grammar(wanted)
        if grammar is not None:
            await model.check_grammar(grammar)
        return grammar
    except GrammarError as exc:
        if not plan.use.callable:
            raise plan.refusal(wanted, exc) from exc
        reason = exc
    for tool, name in zip(plan.use.tools, tools.names, strict=True):  # which of them it is
        try:
            await model.check_grammar(Grammar.json_schema(tool.parameters, strict=tool.strict))
        except GrammarError as exc:
            raise ApiError(f"{name}: {exc}", code="invalid_function_parameters", param=name) from exc
    raise plan.refusal(wanted, reason) from reason


def _as_text(message: ChatMessage) -> ChatMessage:
    if message.role == "tool":
        return ChatMessage("user", f"<tool_response>\n{message.content}\n</tool_response>")
    return _with_calls(message, CallFormat(CallKind.TAGGED, takes_tools=False))


def _with_calls(message: ChatMessage, form: CallFormat) -> ChatMessage:
    """Return a message that has its calls as text behind its own."""
    if not message.tool_calls:
        return message
    text = calls_text(form, [(call.name, call.arguments) for call in message.tool_calls])
    return ChatMessage(message.role, f"{message.content}\n{text}" if message.content else text)


def _with_short_ids(message: ChatMessage) -> ChatMessage:
    calls = tuple(replace(call, id=_short(call.id)) for call in message.tool_calls)
    call_id = None if message.tool_call_id is None else _short(message.tool_call_id)
    return replace(message, tool_calls=calls, tool_call_id=call_id)


def _short(call_id: str) -> str:
    plain = "".join(char for char in call_id if char.isascii() and char.isalnum())
    return plain[-_MISTRAL_ID_CHARS:].rjust(_MISTRAL_ID_CHARS, "0")
