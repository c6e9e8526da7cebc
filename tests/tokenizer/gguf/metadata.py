"""Metadata of GGUF files, written from a tokenizer in Hugging Face's layout as the converters do it."""

from __future__ import annotations

import json
import re
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenizers import Tokenizer

GEMMA4, SARVAM = "gemma4", "sarvam-moe"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def byte_level_metadata(backend: Tokenizer, pre: str, named: Mapping[str, str]) -> dict[str, object]:
    """Describe a byte-level tokenizer; `named` are the tokens of "bos", "eos" and so on."""
    result = _metadata(backend, "gpt2", named)
    merges = json.loads(backend.to_str())["model"]["merges"]
    result["tokenizer.ggml.pre"] = pre
    result["tokenizer.ggml.merges"] = [" ".join(pair) for pair in merges]
    return result


def sentencepiece_metadata(
    backend: Tokenizer, scores: Mapping[str, float], named: Mapping[str, str], *, add_space_prefix: bool
) -> dict[str, object]:
    """Describe a tokenizer that joins pieces by their scores; all others have the converters' -1000."""
    result = _metadata(backend, "llama", named)
    tokens = result["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    result["tokenizer.ggml.scores"] = [scores.get(token, -1000.0) for token in tokens]
    result["tokenizer.ggml.add_space_prefix"] = add_space_prefix
    return result


def gemma4_metadata(backend: Tokenizer, named: Mapping[str, str]) -> dict[str, object]:
    """Describe a tokenizer of pieces with merges; newlines in a row are typed as plain text."""
    result = _metadata(backend, GEMMA4, named)
    tokens, types = result["tokenizer.ggml.tokens"], result["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list) and isinstance(types, list)
    result["tokenizer.ggml.token_type"] = [
        NORMAL if kind == USER_DEFINED and not token.strip("\n") else kind
        for token, kind in zip(tokens, types, strict=True)
    ]
    result["tokenizer.ggml.merges"] = [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    result["tokenizer.ggml.scores"] = [-1000.0] * len(tokens)
    return result | {"tokenizer.ggml.add_space_prefix": False}


def sarvam_metadata(backend: Tokenizer, named: Mapping[str, str]) -> dict[str, object]:
    """Describe a tokenizer of pieces with merges, as the converter of byte-level ones does: bytes are plain text."""
    result = byte_level_metadata(backend, SARVAM, named)
    assert _types_by_token(result)["<0x41>"] == NORMAL
    return result


def as_read(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return the metadata as reading a file with it gives it."""
    return {key: _as_read(value) for key, value in metadata.items()}


def with_types(metadata: Mapping[str, object], types: Mapping[str, int]) -> dict[str, object]:
    """Return the metadata with other types of some tokens."""
    tokens, found = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list) and isinstance(found, list)
    changed = [types.get(token, kind) for token, kind in zip(tokens, found, strict=True)]
    return {**metadata, "tokenizer.ggml.token_type": changed}


def _types_by_token(metadata: Mapping[str, object]) -> dict[str, int]:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list) and isinstance(types, list)
    return dict(zip(tokens, types, strict=True))


def _as_read(value: object) -> object:
    match value:
        case [str(), *_]:
            return tuple(value)
        case [float(), *_]:
            return array("f", value)
        case list():
            return array("i", value)
    return value


def _metadata(backend: Tokenizer, model: str, named: Mapping[str, str]) -> dict[str, object]:
    added = backend.get_added_tokens_decoder()
    size = 1 + max(backend.get_vocab(with_added_tokens=True).values())
    tokens, types = [], []
    for index in range(size):
        token = backend.id_to_token(index)
        kind = NORMAL
        if token is None:
            token, kind = f"[PAD{index}]", UNUSED
        elif index in added:
            kind = CONTROL if added[index].special else USER_DEFINED
        elif model in ("llama", GEMMA4) and re.fullmatch("<0x[0-9A-F]{2}>", token):
            kind = BYTE
        if token == named.get("unknown"):
            kind = UNKNOWN
        tokens.append(token.replace("▁", " ") if kind == USER_DEFINED else token)
        types.append(kind)
    ids = {f"tokenizer.ggml.{kind}_token_id": tokens.index(token) for kind, token in named.items()}
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_bos_token": True,
        **ids,
    }
