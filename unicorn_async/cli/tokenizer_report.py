"""What `unicorn inspect` tells of a model's tokenizer: how many tokens it has, or why a load would end for it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.engine.tokenizer_task import is_large
from unicorn_async.errors import CheckpointError, TokenizerError
from unicorn_async.tokenizer.process import TokenizerProcess
from unicorn_async.tokenizer.worker import make_tokenizer

if TYPE_CHECKING:
    from unicorn_async.engine.files import ModelFiles
    from unicorn_async.tokenizer.worker import Source


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """How many tokens there are, 0 where the tokenizer can't be made; `refused` is why a load would end, or ""."""

    num_tokens: int
    refused: str = ""

    @property
    def text(self) -> str:
        """It in a line."""
        return f"refused: {self.refused}" if self.refused else f"{self.num_tokens} tokens"

    def to_json(self) -> dict[str, object]:
        """It as JSON values."""
        return {"tokens": self.num_tokens, "refused": self.refused or None}


def tokenizer_report(model: ModelFiles) -> TokenizerReport:
    """Make the tokenizer as a load does, a large one in a process of its own, and look at what a load looks at."""
    try:
        num_tokens = _num_tokens(model.tokenizer_source)
    except TokenizerError as exc:
        return TokenizerReport(0, str(exc))
    try:
        model.check_vocabulary(num_tokens)
    except CheckpointError as exc:
        return TokenizerReport(num_tokens, str(exc))
    return TokenizerReport(num_tokens)


def _num_tokens(source: Source) -> int:
    if not is_large(source):
        return make_tokenizer(source).vocab_size
    with closing(TokenizerProcess(source)) as process:
        return process.tokenizer().vocab_size
