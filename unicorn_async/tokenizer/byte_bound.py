"""How many tokens a text has at least, by its bytes alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, cast

import tokenizers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.tokenizer.pieces import Pieces

_NFC_SHRINK = 3  # bytes that canonical composition makes of each one at most: three Hangul jamo, nine bytes, are three
_NFKC_SHRINK = 4 * _NFC_SHRINK  # and a letter of mathematics, four bytes, is one of ASCII
_SPACE = ({"String": " "}, "▁")


class ByteBound(NamedTuple):
    """A token stands for `longest` bytes of text at most; if not `counts_space`, for any whitespace beside these."""

    longest: int
    counts_space: bool

    def least_tokens(self, text: str) -> int:
        """Return how many tokens the text has at least."""
        counted = text if self.counts_space else "".join(text.split())
        return -(-len(counted.encode("utf-8", "replace")) // self.longest)


def byte_bound(backend: tokenizers.Tokenizer, pieces: Pieces) -> ByteBound | None:
    """Return the bound; None where a tokenizer may drop text, or make one token of any number of unknown characters."""
    shrink = _shrink(_state(backend.normalizer))
    if shrink is None or not _keeps(_state(backend.pre_tokenizer)) or not _knows_all_bytes(backend, pieces):
        return None
    ids = backend.get_vocab(with_added_tokens=True).values()
    longest = max((len(pieces[token_id]) for token_id in ids), default=0)
    strips = any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values())
    return ByteBound(max(1, longest) * shrink, counts_space=not strips)


def _state(part: object) -> dict[str, object] | None:
    if part is None:
        return None
    state: dict[str, object] = json.loads(cast("bytes", part.__getstate__()))
    return state


def _parts(state: Mapping[str, object], key: str) -> list[dict[str, object]]:
    parts = state.get(key)
    return parts if isinstance(parts, list) else []


def _shrink(normalizer: Mapping[str, object] | None) -> int | None:
    """How many bytes a normalizer may make one of, None where that is not known."""
    if normalizer is None:
        return 1
    match normalizer:
        case {"type": "NFC"}:
            return _NFC_SHRINK
        case {"type": "NFKC"}:
            return _NFKC_SHRINK
        case {"type": "Prepend"}:
            return 1
        case {"type": "Replace", "pattern": pattern, "content": content} if (pattern, content) == _SPACE:
            return 1
        case {"type": "Sequence"}:
            product = 1
            for part in _parts(normalizer, "normalizers"):
                factor = _shrink(part)
                if factor is None:
                    return None
                product *= factor
            return product
    return None


def _keeps(pre_tokenizer: Mapping[str, object] | None) -> bool:
    """Whether a pre-tokenizer leaves all text where it is."""
    if pre_tokenizer is None:
        return True
    match pre_tokenizer:
        case {"type": "ByteLevel" | "Metaspace" | "Digits"}:
            return True
        case {"type": "Split" | "Punctuation", "behavior": str(behavior)}:
            return behavior != "Removed"
        case {"type": "Sequence"}:
            return all(_keeps(part) for part in _parts(pre_tokenizer, "pretokenizers"))
    return False


def _knows_all_bytes(backend: tokenizers.Tokenizer, pieces: Pieces) -> bool:
    """Whether every byte has a token: nothing is unknown then."""
    model = backend.model
    if not isinstance(model, tokenizers.models.BPE):
        return False
    if pieces.byte_tokens is not None:
        return all(backend.token_to_id(token) is not None for token in pieces.byte_tokens)
    return bool(model.byte_fallback) and all(backend.token_to_id(f"<0x{b:02X}>") is not None for b in range(256))
