"""Embeddings as OpenAI's API tells them."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.encoding import encode_object, encode_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from unicorn_async.engine.types import FinishReason, Token
    from unicorn_async.server.protocol.errors import ErrorInfo


class EmbeddingAnswer:
    """The embeddings of one request's inputs, an `Answer` that is told whole.

    Each is encoded when it comes: all of them at once would hold up whatever else is sent.
    """

    def __init__(self, model: str, encoding: str, num_inputs: int, num_tokens: int) -> None:
        self.error: ErrorInfo | None = None
        self._model = model
        self._is_text = encoding == "base64"
        self._num_tokens = num_tokens
        self._entries = [""] * num_inputs

    def add(self, index: int, embedding: NDArray[np.float32]) -> None:
        """Take the embedding of an input; raises ValueError where it has numbers that JSON has not."""
        if self._is_text:
            value = encode_text(base64.b64encode(embedding.astype("<f4").tobytes()).decode())
        else:
            value = encode_object(embedding.tolist())
        self._entries[index] = f'{{"object":"embedding","index":{index},"embedding":{value}}}'

    def text(self) -> str:
        """Return the whole object as JSON."""
        usage = {"prompt_tokens": self._num_tokens, "total_tokens": self._num_tokens}
        rest = encode_object({"model": self._model, "usage": usage})
        return f'{{"object":"list","data":[{",".join(self._entries)}],{rest[1:]}'

    def begin(self) -> Sequence[str]:
        """Return nothing: all is told at the end."""
        return ()

    def heartbeat(self) -> str | None:
        """Return nothing."""
        return None

    def opened(self) -> Sequence[str]:
        """Return nothing."""
        return ()

    def token(self, token: Token) -> Sequence[str]:
        """Return nothing: what ends the stream has no text."""
        return ()

    def finished(self, reason: FinishReason) -> Sequence[str]:
        """Return nothing."""
        return ()

    def failed(self, error: ErrorInfo) -> Sequence[str]:
        """Take an error in the place of the embeddings."""
        self.error = replace(error, param="input") if error.status == 400 and error.param is None else error
        return ()
