"""Encodes a text by the part of a large vocabulary that the text may need.

Byte-pair encoding joins neighbours to what they are together, so a token takes part in a text's encoding only if its
characters stand in the text, one after the other in one word; of the others, and of the merges that need them, it makes
no difference whether they are there. A tokenizer of what is left is made in a few milliseconds, and gives the same ids.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, cast

import numpy as np
import tokenizers

from unicorn_async.tokenizer.kept import part_hashes, stand_ins, text_hash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from unicorn_async.tokenizer.kept import KeptTokenizer

MAX_TEXT_CHARS = 1 << 14  # beyond, the excerpt takes longer than who waits for the whole
_UNKNOWN = "unknown"  # longer than a character, so that no character of a text is it
_BETWEEN = 0x110000  # stands between two words: no character
_PLAIN = {"unk_token": _UNKNOWN, "byte_fallback": False, "fuse_unk": False, "ignore_merges": False}


class Excerpts:
    """Makes excerpts of a kept tokenizer; any thread may use it."""

    def __init__(self, kept: KeptTokenizer) -> None:
        self._kept = kept
        self._longest = kept.longest
        model = cast("Mapping[str, object]", kept.rules["model"])
        self._rules = tokenizers.Tokenizer.from_str(json.dumps(self._frame({_UNKNOWN: 0}, [], _PLAIN, [])))
        always = stand_ins(model)
        self._always_numbers = self._numbers(np.array([text_hash(text) for text in always], np.uint64))
        # Else the library leaves out a character that is no token, and may join those on its two sides.
        all_bytes = bool(model.get("byte_fallback")) and len(self._always_numbers) == len(always)
        self._stands_for_all = all_bytes or isinstance(model.get("unk_token"), str)

    def encode(self, text: str, *, with_control: bool) -> list[int] | None:
        """Return the ids that the whole vocabulary gives, None where only that can tell; see `Encoder.encode`.

        Raises:
            UnicodeEncodeError: the text is not valid Unicode.
        """
        text.encode()  # half a character is not for the library to tell
        if len(text) > MAX_TEXT_CHARS:
            return None
        words = self._words(text, with_control=with_control)
        if words is None:
            return None
        hashes = part_hashes(words, self._longest)
        if not self._stands_for_all and len(words):
            hashes += part_hashes(self._tokens_of(words), self._longest)
        needed = np.unique(np.concatenate([self._always_numbers, *map(self._numbers, hashes)]))
        kept = self._kept
        is_needed = np.zeros(len(kept.ids), np.bool_)
        is_needed[needed] = True
        texts = [kept.text(int(number)) for number in needed]
        merges = kept.merges[is_needed[kept.merges].all(axis=1)]
        text_of = dict(zip(needed.tolist(), texts, strict=True))
        backend = self._tokenizer(
            text,
            vocabulary={token: local for local, token in enumerate(texts)},
            merges=[[text_of[left], text_of[right]] for left, right, _ in merges.tolist()],
            keys={},
        )
        found = _encoded(backend, text, with_control=with_control)
        ids = kept.ids[needed].tolist()
        added = {backend.token_to_id(str(token["content"])): int(str(token["id"])) for token in self._added(text)}
        return [ids[local] if local < len(ids) else added[local] for local in found.ids]

    def _words(self, text: str, *, with_control: bool) -> NDArray[np.uint64] | None:
        """The characters of the text's words, as they come to the model, with something between two words."""
        characters = set(text) | set(self._normalised(text))
        vocabulary = {_UNKNOWN: 0} | {character: index for index, character in enumerate(sorted(characters), 1)}
        backend = self._tokenizer(text, vocabulary=vocabulary, merges=[], keys=_PLAIN)
        found = _encoded(backend, text, with_control=with_control)
        if _UNKNOWN in found.tokens:
            return None
        result: list[int] = []
        last: int | None = None
        for token, word in zip(found.tokens, found.word_ids, strict=True):
            if word != last or word is None:
                result.append(_BETWEEN)
            last = word
            result += map(ord, token)
        return np.array(result, np.uint64)

    def _tokens_of(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The characters without those that are no token."""
        found, places = np.unique(words, return_inverse=True)
        hashes = np.split(found + np.uint64(1), len(found))  # a character's is the next number
        is_token = np.array([len(self._numbers(one)) > 0 for one in hashes])
        result: NDArray[np.uint64] = words[is_token[places] | (words == _BETWEEN)]
        return result

    def _normalised(self, text: str) -> str:
        if self._rules.normalizer is not None:
            text = self._rules.normalizer.normalize_str(text)
        if self._rules.pre_tokenizer is None:
            return text
        return "".join(word for word, _ in self._rules.pre_tokenizer.pre_tokenize_str(text))

    def _tokenizer(
        self, text: str, *, vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], keys: Mapping[str, object]
    ) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(json.dumps(self._frame(vocabulary, merges, keys, self._added(text))))

    def _frame(
        self,
        vocabulary: Mapping[str, int],
        merges: Sequence[Sequence[str]],
        keys: Mapping[str, object],
        added: Sequence[Mapping[str, object]],
    ) -> dict[str, object]:
        model = cast("dict[str, object]", self._kept.rules["model"])
        others = (index for index in itertools.count(len(vocabulary)))
        known = ((token, vocabulary.get(str(token["content"]))) for token in added)
        numbered = [{**token, "id": next(others) if number is None else number} for token, number in known]
        return {
            **self._kept.rules,
            "model": {**model, **keys, "vocab": dict(vocabulary), "merges": list(merges)},
            "added_tokens": numbered,
        }

    def _added(self, text: str) -> list[Mapping[str, object]]:
        """The added tokens that may be found in a text."""
        return [token for token in self._kept.added if token["normalized"] or str(token["content"]) in text]

    def _numbers(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Numbers of the tokens that have these hashes, as far as there are any."""
        table = self._kept.hashes
        places = np.minimum(np.searchsorted(table, hashes), len(table) - 1)
        found: NDArray[np.uint32] = self._kept.by_hash[places[table[places] == hashes]]
        return found


def _encoded(backend: tokenizers.Tokenizer, text: str, *, with_control: bool) -> tokenizers.Encoding:
    backend.encode_special_tokens = not with_control
    return backend.encode(text, add_special_tokens=False)
