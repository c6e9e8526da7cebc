"""What is kept of a large tokenizer, so that the next start has it before the library has read the vocabulary again.

One file holds the facts, the bytes of all tokens, and tables in which the tokens and merges are found that a text may
need (`Excerpt`). It is read by mapping it; what is in it is trusted no further than its digest.
"""

from __future__ import annotations

import hashlib
import json
import struct
from array import array
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from unicorn_async.tokenizer.facts import ControlToken, TokenizerFacts
from unicorn_async.tokenizer.pieces import PieceTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import tokenizers
    from numpy.typing import NDArray

    Table = NDArray[np.uint32]

FORMAT = 4  # changes with what is kept, and with what a tokenizer is made of its source
_MAGIC = b"unicorn tokenizer %d\n" % FORMAT
_HEAD = struct.Struct("<32sQ")  # digest of what follows it, bytes of the description
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
MAX_TOKEN_CHARS = 256
_MOST_NORMALISED = 256  # added tokens that are looked for in normalised text, all of which go into every excerpt


@dataclass(frozen=True, slots=True)
class KeptTokenizer:
    """A tokenizer by byte-pair encoding, as tables; `rules` is its tokenizer.json without vocabulary and merges.

    Tokens are numbered by their place in the tables, which have the vocabulary alone: `ids` are their ids, `ends` where
    their texts end in `texts`. `hashes` are those of the texts, in order, of the tokens in `by_hash`. `merges` are
    (merges, 3): left, right and what comes of them, first the one that is to be done first. `added` are the added
    tokens, as tokenizer.json has them.
    """

    facts: TokenizerFacts
    strip: tuple[bytes, int]
    pieces: PieceTable
    rules: Mapping[str, object]
    added: Sequence[Mapping[str, object]]
    texts: str
    ends: Table
    ids: Table
    hashes: NDArray[np.uint64]
    by_hash: Table
    merges: Table

    def text(self, token: int) -> str:
        """Return a token's text."""
        return self.texts[int(self.ends[token - 1]) if token else 0 : int(self.ends[token])]

    @property
    def longest(self) -> int:
        """Characters of the longest token."""
        return int(np.diff(self.ends, prepend=np.uint32(0)).max(initial=0))


def kept_form(
    backend: tokenizers.Tokenizer, facts: TokenizerFacts, pieces: PieceTable, strip: tuple[bytes, int]
) -> bytes | None:
    """Return the file for a tokenizer, None where it is of a kind of which a part can't stand for the whole."""
    rules = cast("dict[str, object]", json.loads(backend.to_str()))
    model = cast("dict[str, object]", rules["model"])
    added = cast("list[dict[str, object]]", rules.pop("added_tokens"))
    vocabulary = cast("dict[str, int]", model.pop("vocab"))
    merges = model.pop("merges", None)
    if model.get("type") != "BPE" or not isinstance(merges, list) or not _is_plain(model, vocabulary, added):
        return None
    if len(vocabulary) != backend.get_vocab_size(with_added_tokens=False):  # of two with one id it tells one
        return None
    if not _told_apart(backend, added):
        return None
    rules["post_processor"] = None  # it names special tokens, and is never asked
    numbers = {text: number for number, text in enumerate(vocabulary)}
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    if not stand_ins(model).isdisjoint(part for pair in pairs for part in pair):
        return None
    table = np.array([(numbers[left], numbers[right], numbers[left + right]) for left, right in pairs], np.uint32)
    hashes = np.array([text_hash(text) for text in vocabulary], np.uint64)
    order = np.argsort(hashes, kind="stable")
    if (np.diff(hashes[order]) == 0).any():
        return None
    ends = np.cumsum([len(text) for text in vocabulary], dtype=np.uint32)
    arrays: dict[str, NDArray[np.generic]] = {
        "hashes": hashes[order],
        "piece_ends": np.frombuffer(pieces.ends, np.uint64),
        "by_hash": order.astype(np.uint32),
        "ends": ends,
        "ids": np.fromiter(vocabulary.values(), np.uint32),
        "merges": table.reshape(-1, 3),
        "pieces": np.frombuffer(bytes(pieces.data), np.uint8),
        "texts": np.frombuffer("".join(vocabulary).encode(), np.uint8),
    }
    description = {
        "facts": {**asdict(facts), "control": [[i, *asdict(token).values()] for i, token in facts.control.items()]},
        "strip": [strip[0].hex(), strip[1]],
        "rules": rules,
        "added": added,
        "sizes": {name: int(values.size) for name, values in arrays.items()},
    }
    text = json.dumps(description).encode()
    text += b" " * (-(len(text) + len(_MAGIC) + _HEAD.size) % 8)
    body = text + b"".join(values.tobytes() for values in arrays.values())
    return _MAGIC + _HEAD.pack(_digest(len(text), body), len(text)) + body


def read_kept(content: memoryview) -> KeptTokenizer | None:
    """Return what a file holds, None where it is damaged; the tables are views of `content`."""
    return parse_kept(content) if is_whole(content) else None


def is_whole(content: memoryview) -> bool:
    """Whether a file is as it was written; it takes a millisecond a megabyte, of which Python has little."""
    start = len(_MAGIC) + _HEAD.size
    if len(content) < start or content[: len(_MAGIC)] != _MAGIC:
        return False
    digest, text_bytes = _HEAD.unpack_from(content, len(_MAGIC))
    body = content[start:]
    return bool(text_bytes <= len(body) and _digest(text_bytes, body) == digest)


def parse_kept(content: memoryview) -> KeptTokenizer:
    """Return what a whole file holds; the tables are views of `content`."""
    _, text_bytes = _HEAD.unpack_from(content, len(_MAGIC))
    body = content[len(_MAGIC) + _HEAD.size :]
    description = json.loads(bytes(body[:text_bytes]))
    arrays: dict[str, NDArray[np.generic]] = {}
    offset = text_bytes
    for (name, size), kind in zip(description["sizes"].items(), _KINDS, strict=True):
        arrays[name] = np.frombuffer(body, kind, size, offset)
        offset += arrays[name].nbytes
    facts, (strip, times) = description["facts"], description["strip"]
    control = {number: ControlToken(*rest) for number, *rest in facts.pop("control")}
    for name in ("eos_token_ids", "prefix", "suffix", "added_ids"):
        facts[name] = tuple(facts[name])
    return KeptTokenizer(
        facts=TokenizerFacts(control=control, **facts),
        strip=(bytes.fromhex(strip), times),
        pieces=PieceTable(bytearray(arrays["pieces"].tobytes()), array("Q", arrays["piece_ends"].tobytes())),
        rules=description["rules"],
        added=description["added"],
        texts=arrays["texts"].tobytes().decode(),
        ends=cast("Table", arrays["ends"]),
        ids=cast("Table", arrays["ids"]),
        hashes=cast("NDArray[np.uint64]", arrays["hashes"]),
        by_hash=cast("Table", arrays["by_hash"]),
        merges=cast("Table", arrays["merges"]).reshape(-1, 3),
    )


_KINDS = (np.uint64, np.uint64, np.uint32, np.uint32, np.uint32, np.uint32, np.uint8, np.uint8)


def stand_ins(model: Mapping[str, object]) -> frozenset[str]:
    """Return the tokens that stand for characters of which they are not made: no part of a text is like them."""
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)] if model.get("byte_fallback") else []
    unknown = model.get("unk_token")
    return frozenset([*bytes_of, unknown] if isinstance(unknown, str) else bytes_of)


def text_hash(text: str) -> int:
    """Return a text's hash: a polynomial of its characters, so that those of all parts of a text are found at once."""
    value = 0
    for character in text:
        value = (value * int(_HASH_FACTOR) + ord(character) + 1) & 0xFFFFFFFFFFFFFFFF
    return value


def part_hashes(characters: NDArray[np.uint64], longest: int) -> list[NDArray[np.uint64]]:
    """Return, for each length from 1 on, the hashes of all parts of a text that have it, in order."""
    found: list[NDArray[np.uint64]] = []
    values = np.zeros(len(characters), np.uint64)
    for length in range(min(longest, len(characters))):
        values = values[: len(characters) - length] * _HASH_FACTOR + characters[length:] + np.uint64(1)
        found.append(values)
    return found


def _is_plain(
    model: Mapping[str, object], vocabulary: Mapping[str, int], added: Sequence[Mapping[str, object]]
) -> bool:
    """Whether an excerpt gives what the whole does: nothing random, nothing that the library puts on to a token."""
    if model.get("dropout") or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    if sum(token.get("normalized") is True for token in added) > _MOST_NORMALISED:
        return False
    return bool(vocabulary) and all(len(text) <= MAX_TOKEN_CHARS for text in vocabulary)


def _told_apart(backend: tokenizers.Tokenizer, added: Sequence[Mapping[str, object]]) -> bool:
    """Whether no two added tokens are one text once it is normalised: the library finds one of them then."""
    texts = [str(token["content"]) for token in added if token.get("normalized") is True]
    if backend.normalizer is not None:
        texts = [backend.normalizer.normalize_str(text) for text in texts]
    return len(set(texts)) == len(texts)


def _digest(text_bytes: int, body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=32, key=text_bytes.to_bytes(8, "little")).digest()
