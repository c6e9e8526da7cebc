"""The body of POST /v1/embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.completion_request import parse_prompts
from unicorn_async.server.protocol.hints import MAX_NAME
from unicorn_async.server.protocol.responses_request import parse_model

if TYPE_CHECKING:
    from unicorn_async.server.protocol.fields import Fields

KNOWN = frozenset({"dimensions", "encoding_format", "input", "model", "user"})
ENCODINGS = ("float", "base64")
MAX_INPUTS = 2048  # as OpenAI's, like the next one
MAX_TOKENS = 300_000  # of all inputs
MAX_NUMBERS = {"float": 1 << 20, "base64": 1 << 22}  # of all embeddings
MAX_DIMENSIONS = 1 << 20


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A checked request; each input is text or token ids."""

    inputs: tuple[str | tuple[int, ...], ...]
    encoding: str = ENCODINGS[0]
    dimensions: int | None = None
    model: str | None = None  # as in `ResponsesRequest`


def parse_embedding_request(fields: Fields) -> EmbeddingRequest:
    """Check a request's body.

    Raises:
        ApiError: with the name of the field that is wrong, or unknown.
    """
    fields.refuse_unknown(KNOWN)
    fields.string("user", max_length=MAX_NAME)
    return EmbeddingRequest(
        inputs=parse_prompts(fields, "input", MAX_INPUTS),
        encoding=fields.choice("encoding_format", ENCODINGS) or ENCODINGS[0],
        dimensions=fields.integer("dimensions", 1, MAX_DIMENSIONS),
        model=parse_model(fields),
    )
