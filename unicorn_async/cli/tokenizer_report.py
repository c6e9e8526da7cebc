"""What `unicorn inspect` tells of a model's tokenizer: how many tokens it has, or why a load would end for it."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.engine.tokenizer_task import is_large
from unicorn_async.errors import CheckpointError, TokenizerError
from unicorn_async.tokenizer.process import TokenizerProcess
from unicorn_async.tokenizer.worker import make_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.engine.files import ModelFiles
    from unicorn_async.tokenizer import Tokenizer
    from unicorn_async.tokenizer.worker import Source

_SHOWN_TOKENS = 3


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """How many tokens there are, 0 where the tokenizer can't be made; `refused` is why a load would end, or "".

    `without_rows` are texts of tokens, by their ids, that the model has no embeddings of.
    """

    num_tokens: int
    refused: str = ""
    without_rows: Mapping[int, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """It in a line."""
        if self.refused:
            return f"refused: {self.refused}"
        found = [f"{token_id} {text!r}" for token_id, text in self.without_rows.items()]
        more = f" and {len(found) - _SHOWN_TOKENS} more" if len(found) > _SHOWN_TOKENS else ""
        shown = f", no prompt may have {', '.join(found[:_SHOWN_TOKENS])}{more}: without embeddings" if found else ""
        return f"{self.num_tokens} tokens{shown}"

    def to_json(self) -> dict[str, object]:
        """It as JSON values."""
        without = [{"id": token_id, "text": text} for token_id, text in self.without_rows.items()]
        return {"tokens": self.num_tokens, "refused": self.refused or None, "without_embeddings": without}


def tokenizer_report(model: ModelFiles) -> TokenizerReport:
    """Make the tokenizer as a load does, a large one in a process of its own, and look at what a load looks at."""
    with ExitStack() as stack:
        try:
            tokenizer = _made(model.tokenizer_source, stack)
        except TokenizerError as exc:
            return TokenizerReport(0, str(exc))
        num_tokens = tokenizer.vocab_size
        try:
            model.check_vocabulary(tokenizer)
        except CheckpointError as exc:
            return TokenizerReport(num_tokens, str(exc))
        without = {token_id: tokenizer.token_text(token_id) for token_id in model.without_rows(tokenizer)}
        return TokenizerReport(num_tokens, without_rows=without)


def _made(source: Source, stack: ExitStack) -> Tokenizer:
    if not is_large(source):
        return make_tokenizer(source)
    return stack.enter_context(closing(TokenizerProcess(source))).tokenizer()
