"""Sees that an answer can have the form that is wanted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import GrammarError

if TYPE_CHECKING:
    from unicorn_async.engine.types import EngineAPI
    from unicorn_async.server.protocol.answer_format import AnswerFormat


async def check_format(engine: EngineAPI, wanted: AnswerFormat) -> None:
    """Have the grammar of an answer compiled before anything else is done for it.

    Raises:
        ApiError: it can't be used; the field is named.
    """
    if wanted.grammar is None:
        return
    try:
        await engine.check_grammar(wanted.grammar)
    except GrammarError as exc:
        raise wanted.refusal(exc) from exc
