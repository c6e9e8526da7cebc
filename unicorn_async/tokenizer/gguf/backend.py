"""From a GGUF vocabulary to a tokenizer of the `tokenizers` library."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from unicorn_async.errors import TokenizerError
from unicorn_async.tokenizer.gguf.marks import TokenType
from unicorn_async.tokenizer.gguf.pre_tokenizer import pre_tokenizer
from unicorn_async.tokenizer.gguf.vocabulary import BYTE_LEVEL, GgufVocabulary
from unicorn_async.tokenizer.library_errors import library_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SPACE = "▁"  # SentencePiece's
_TEXT_TYPES = (TokenType.NORMAL, TokenType.USER_DEFINED)
_FIRST_BYTE = "<0x00>"  # converters of byte-level vocabularies have bytes as text
_MAX_PIECE_CHARS = 256  # the work of finding merges grows with the square
_SPACES = re.compile(" +")
_TURN_MARKS = frozenset(("[INST]", "[/INST]", "[TOOL_CALLS]"))  # in Mistral's vocabularies since their third version


def backend_of(vocabulary: GgufVocabulary) -> tokenizers.Tokenizer:
    """Return the tokenizer; its control tokens are not marked yet.

    Raises:
        TokenizerError: the vocabulary contradicts itself, or names a pre-tokenizer that is not known.
    """
    with library_errors("tokenizer.ggml"):
        if vocabulary.has_merged_pieces:
            return _merged_pieces(vocabulary)
        return _byte_level(vocabulary) if vocabulary.model == BYTE_LEVEL else _sentencepiece(vocabulary)


def _byte_level(vocabulary: GgufVocabulary) -> tokenizers.Tokenizer:
    pre = pre_tokenizer(vocabulary.pre)
    ids = _ids(vocabulary.tokens, vocabulary.types)
    merges = _merges(vocabulary)
    result = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=pre.whole_words))
    if pre.form is not None:
        result.normalizer = pre.form()
    result.pre_tokenizer = pre.build()
    result.decoder = decoders.ByteLevel()
    _add_user_defined(result, vocabulary.of_type(TokenType.USER_DEFINED))
    return result


def _sentencepiece(vocabulary: GgufVocabulary) -> tokenizers.Tokenizer:
    """Pieces joined by their scores.

    The file says whether a space is put in front of a text, and not where: behind every control token too, or at the
    beginning alone and only where there is none. The latter goes with vocabularies whose control tokens mark turns.
    """
    from unicorn_async.tokenizer.gguf.merges import merges_of  # with NumPy, which no other tokenizer needs

    if not vocabulary.scores:
        raise TokenizerError("tokenizer.ggml.scores is missing")
    pieces = [_piece(token, kind) for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)]
    ids = _ids(pieces, vocabulary.types)
    result = _of_pieces(vocabulary, ids, merges_of(_scores(pieces, vocabulary)))
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    spaces = normalizers.Replace(" ", _SPACE)
    if not vocabulary.add_space_prefix:
        result.normalizer = spaces
    elif _TURN_MARKS.issubset(vocabulary.of_type(TokenType.CONTROL)):
        result.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="first", split=False)
    else:
        result.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
    without_prefix = [decoders.Strip(" ", 1, 0)] if vocabulary.add_space_prefix else []
    result.decoder = decoders.Sequence([*decoding, *without_prefix])
    user_defined = zip(pieces, vocabulary.types, strict=True)
    _add_user_defined(result, [piece for piece, kind in user_defined if kind == TokenType.USER_DEFINED])
    return result


def _merged_pieces(vocabulary: GgufVocabulary) -> tokenizers.Tokenizer:
    """Pieces joined by merges, as the tokenizer.json files of Gemma 4 and of Sarvam's mixtures have them.

    Runs of newlines, which no merge makes, are found in the text first, whatever their type.
    """
    pieces = [_piece(token, kind) for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)]
    ids = _ids(pieces, vocabulary.types)
    result = _of_pieces(vocabulary, ids, _merges(vocabulary))
    result.normalizer = normalizers.Replace(" ", _SPACE)
    result.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    kinds = zip(pieces, vocabulary.types, strict=True)
    _add_user_defined(result, [piece for piece, kind in kinds if _is_found_first(piece, kind)])
    return result


def _is_found_first(piece: str, kind: int) -> bool:
    is_run = kind == TokenType.NORMAL and len(piece) > 1 and not piece.strip("\n")
    return is_run or kind == TokenType.USER_DEFINED


def _of_pieces(
    vocabulary: GgufVocabulary, ids: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> tokenizers.Tokenizer:
    """A tokenizer that joins characters to pieces, and has bytes for what it has no piece for."""
    unknown = vocabulary.token_ids.get("unknown")
    unknown_pieces = vocabulary.of_type(TokenType.UNKNOWN)
    if not unknown_pieces and unknown is not None:
        unknown_pieces = [vocabulary.tokens[unknown]]
    if unknown_pieces and unknown_pieces[0] not in ids:
        raise TokenizerError(f"tokenizer.ggml: the unknown token {unknown_pieces[0][:100]!r} is none of text's tokens")
    model = models.BPE(
        vocab=dict(ids),
        merges=list(merges),
        unk_token=unknown_pieces[0] if unknown_pieces else None,
        fuse_unk=True,
        byte_fallback=TokenType.BYTE in vocabulary.types or _FIRST_BYTE in ids,
    )
    return tokenizers.Tokenizer(model)


def _piece(token: str, kind: int) -> str:
    """A token as SentencePiece has it: of those that a user defined, the file has runs of spaces as plain ones."""
    is_run = kind == TokenType.USER_DEFINED and _SPACES.fullmatch(token)
    return _SPACE * len(token) if is_run else token


def _scores(pieces: list[str], vocabulary: GgufVocabulary) -> Mapping[str, float]:
    """Pieces of plain text and what joins them first: those that a user defined come before all others."""
    scores: dict[str, float] = {}
    for piece, kind, score in zip(pieces, vocabulary.types, vocabulary.scores, strict=True):
        if kind in _TEXT_TYPES and not (len(piece) <= _MAX_PIECE_CHARS and math.isfinite(score)):
            raise TokenizerError(f"tokenizer.ggml: token {piece[:100]!r} of {len(piece)} characters with score {score}")
        if kind == TokenType.USER_DEFINED:
            scores.setdefault(piece, math.inf)
        elif kind == TokenType.NORMAL:
            scores.setdefault(piece, score)
    return scores


def _ids(pieces: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Tokens that text can have; of equal ones the first."""
    ids: dict[str, int] = {}
    for index, (piece, kind) in enumerate(zip(pieces, types, strict=True)):
        if piece and kind != TokenType.UNUSED:
            ids.setdefault(piece, index)
    return ids


def _merges(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    if not vocabulary.merges:
        raise TokenizerError("tokenizer.ggml.merges is missing")
    return [_pair(merge) for merge in vocabulary.merges]


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right or " " in right:
        raise TokenizerError(f"tokenizer.ggml.merges: expected two tokens with a space between, got {merge[:100]!r}")
    return left, right


def _add_user_defined(backend: tokenizers.Tokenizer, tokens: Sequence[str]) -> None:
    """Have these tokens found in the text before it is cut and merged."""
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in tokens if token])
