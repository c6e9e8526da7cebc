"""Which tokens of a vocabulary mark turns and end answers, whatever type the file gives them.

Some files have a family's marks as pieces of plain text, or as what a user defined: Google's own of Gemma 3 are such.
Source: the vocabularies and chat templates of the families; the ends are those by which llama.cpp's `llama-vocab.cpp`
ends an answer.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class TokenType(IntEnum):
    """What a token is for. Source: `llama_token_type` in llama.cpp."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# What no text has by chance: a mark in every vocabulary that has it as one token.
_SURE_ENDS = frozenset(
    (
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<｜end▁of▁sentence｜>",
    )
)
_SURE_STARTS = frozenset(
    (
        "<start_of_turn>",
        "<|turn>",
        "<|im_start|>",
        "<|im_sep|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|start_of_role|>",
        "<|end_of_role|>",
        "<|begin_of_text|>",
        "<|user|>",
        "<|assistant|>",
        "<|system|>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜begin▁of▁sentence｜>",
    )
)
# What may be text as well, such as a tag of HTML: a mark where the file types it so, or the chat template has it.
_POSSIBLE_ENDS = frozenset(
    (
        "</s>",
        "<eos>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "[e~[",
        "<|tool_response>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
    )
)
_POSSIBLE_STARTS = frozenset(("<s>", "<bos>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"))
_SURE = _SURE_ENDS | _SURE_STARTS
_POSSIBLE = _POSSIBLE_ENDS | _POSSIBLE_STARTS
_ENDS = _SURE_ENDS | _POSSIBLE_ENDS
# Where these are, "<|end|>" ends a message, after which the answer goes on.
_WITH_MORE_MESSAGES = (frozenset(("<|return|>", "<|call|>")), frozenset(("<|calls|>", "<|flush|>")))
_MESSAGE_END = "<|end|>"
_TEXT_TYPES = (TokenType.NORMAL, TokenType.USER_DEFINED)


def types_with_marks(tokens: Sequence[str], types: Sequence[int], template: str | None) -> Sequence[int]:
    """Return the types of the tokens, the marks among them as control tokens."""
    source = template or ""
    marks = [index for index, token in enumerate(tokens) if _is_mark(token, types[index], source)]
    if not marks:
        return types
    result = list(types)
    for index in marks:
        result[index] = TokenType.CONTROL
    return result


def ends_of_answers(tokens: Sequence[str], types: Sequence[int]) -> list[int]:
    """Return the ids of the control tokens that end an answer by what they are called."""
    found = {
        token: index
        for index, token in enumerate(tokens)
        if token in _ENDS and types[index] in (TokenType.CONTROL, TokenType.UNKNOWN)
    }
    if any(others <= found.keys() for others in _WITH_MORE_MESSAGES):
        found.pop(_MESSAGE_END, None)
    return list(found.values())


def _is_mark(token: str, kind: int, template: str) -> bool:
    if kind not in _TEXT_TYPES:
        return False
    if token in _SURE:
        return True
    if token in _POSSIBLE:
        return token in template
    # What a user defined may be text that a template has, too, as reasoning and calls of tools are.
    return kind == TokenType.NORMAL and token.startswith("<|") and token.endswith("|>") and token in template
