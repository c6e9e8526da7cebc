"""The vocabulary in a GGUF file's metadata, `tokenizer.ggml.*`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import TokenizerError
from unicorn_async.tokenizer.files import TokenizerFiles
from unicorn_async.tokenizer.gguf.marks import TokenType, ends_of_answers, types_with_marks

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_NAMED = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
_UNREAD = ("padding",)  # nothing here is padded, and some files name a token that was never added
_END_KINDS = ("eos", "eot", "eom")
BYTE_LEVEL, SENTENCEPIECE, GEMMA4, WORLD = "gpt2", "llama", "gemma4", "rwkv"
_MODELS = (BYTE_LEVEL, SENTENCEPIECE, GEMMA4, WORLD)
_SARVAM = "sarvam-moe"  # pieces and merges in what calls itself byte-level
_BOS_BY_DEFAULT = ("chameleon", "falcon3", "lfm2", "llama-bpe", "llama3", "llama-v3", "pixtral", "tekken")


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """Tokens by id with their types, those of marks corrected, and what else the metadata says about text.

    `model` is "gpt2" (byte-level BPE), "llama" (SentencePiece), "gemma4" (SentencePiece's pieces with BPE's merges) or
    "rwkv" (a world vocabulary, whose tokens have their bytes escaped, and none of which is a mark but the first).
    `scores` are SentencePiece's, `merges` BPE's.
    `token_ids` are named tokens' ids: "bos", "eos", "eot" and others. `more_ends` end an answer beside them.
    """

    model: str
    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    token_ids: Mapping[str, int]
    add_bos: bool
    add_space_prefix: bool
    chat_template: str | None
    add_eos: bool = False
    more_ends: Sequence[int] = ()

    @classmethod
    def read(cls, metadata: Mapping[str, object]) -> GgufVocabulary:
        """Check and read the metadata.

        Raises:
            TokenizerError: a key is missing or of a wrong type, or the kind of tokenizer is not supported.
        """
        keys = _Keys(metadata)
        model = keys.text("model", None)
        if model not in _MODELS:
            raise TokenizerError(f"{_PREFIX}model {model!r} is not supported; known are {', '.join(_MODELS)}")
        tokens = keys.strings("tokens")
        if not tokens:
            raise TokenizerError(f"{_PREFIX}tokens is missing")
        pre = keys.text("pre", "default")
        is_sentencepiece = model == SENTENCEPIECE
        template = _template(metadata)
        types = keys.types(len(tokens))
        return cls(
            model,
            pre,
            tokens,
            types if model == WORLD else types_with_marks(tokens, types, template),
            keys.scores(len(tokens)),
            keys.strings("merges"),
            keys.token_ids(len(tokens)),
            # Files of Gemma 4 that say no were written by an early converter; all of the family want it.
            model == GEMMA4 or keys.flag("add_bos_token", is_sentencepiece or pre in _BOS_BY_DEFAULT),
            keys.flag("add_space_prefix", is_sentencepiece),
            template,
            keys.flag("add_eos_token", False),
            keys.ids("eos_token_ids", len(tokens)),
        )

    @property
    def has_merged_pieces(self) -> bool:
        """Whether the tokens are SentencePiece's pieces, and BPE's merges join them."""
        return self.model == GEMMA4 or (self.model == BYTE_LEVEL and self.pre == _SARVAM)

    def of_type(self, *types: TokenType) -> list[str]:
        """Return the tokens of some types."""
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]

    def files(self) -> TokenizerFiles:
        """Return what a model's directory would say beside tokenizer.json; ends of turns end an answer too."""
        control = frozenset(self.of_type(TokenType.CONTROL, TokenType.UNKNOWN))
        named = {name: self.tokens[self.token_ids[kind]] for kind, name in _NAMED.items() if kind in self.token_ids}
        ends = [self.token_ids[kind] for kind in _END_KINDS if kind in self.token_ids]
        ends += self.more_ends
        ends += ends_of_answers(self.tokens, self.types)
        return TokenizerFiles(
            special_tokens=named,
            control_strings=control | frozenset(named.values()),
            add_bos=self.add_bos,
            eos_token_ids=tuple(dict.fromkeys(ends)),
            chat_template=self.chat_template,
            add_eos=self.add_eos,
        )


def _template(metadata: Mapping[str, object]) -> str | None:
    """The chat template; where none has that name alone, the only one that `tokenizer.chat_templates` names."""
    source = metadata.get(_TEMPLATE)
    names = metadata.get(f"{_TEMPLATE}s")
    if source is None and isinstance(names, Sequence) and len(names) == 1:
        source = metadata.get(f"{_TEMPLATE}.{names[0]}")
    return source if isinstance(source, str) else None


class _Keys:
    """Typed access to `tokenizer.ggml.*`; a key that is absent gives the default, or nothing."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def text(self, name: str, default: str | None) -> str:
        value = self._metadata.get(_PREFIX + name, default)
        if value is None:
            raise TokenizerError(f"{_PREFIX}{name} is missing")
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._metadata.get(_PREFIX + name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        value = self._metadata.get(_PREFIX + name, ())
        if isinstance(value, Sequence) and not isinstance(value, str | bytes | array):
            strings = tuple(value)
            if all(isinstance(item, str) for item in strings):
                return strings
        if isinstance(value, array) and not value:  # an empty array has whatever type its writer chose
            return ()
        raise self._wrong(name, "strings", value)

    def types(self, num_tokens: int) -> Sequence[int]:
        value = self._metadata.get(f"{_PREFIX}token_type")
        if value is None:
            return array("i", [TokenType.NORMAL]) * num_tokens
        if not isinstance(value, array) or value.typecode in "fd" or len(value) != num_tokens:
            raise self._wrong("token_type", f"{num_tokens} integers", value)
        return value

    def scores(self, num_tokens: int) -> Sequence[float]:
        value = self._metadata.get(f"{_PREFIX}scores", array("f"))
        if not isinstance(value, array) or len(value) not in (0, num_tokens):
            raise self._wrong("scores", f"{num_tokens} numbers", value)
        return value

    def token_ids(self, num_tokens: int) -> dict[str, int]:
        result: dict[str, int] = {}
        for kind in {*_NAMED, *_END_KINDS}:
            value = self._metadata.get(f"{_PREFIX}{kind}_token_id")
            if value is None:
                continue
            if type(value) is not int or not 0 <= value < num_tokens:
                if type(value) is int and kind in _UNREAD:
                    continue
                raise self._wrong(f"{kind}_token_id", f"an id below {num_tokens}", value)
            result[kind] = value
        return result

    def ids(self, name: str, num_tokens: int) -> tuple[int, ...]:
        value = self._metadata.get(_PREFIX + name, ())
        numbers = tuple(value) if isinstance(value, array | tuple) else (None,)
        if not all(type(number) is int and 0 <= number < num_tokens for number in numbers):
            raise self._wrong(name, f"ids below {num_tokens}", value)
        return numbers

    @staticmethod
    def _wrong(name: str, wanted: str, value: object) -> TokenizerError:
        shown = (
            f"{len(value)} elements"
            if isinstance(value, Sequence | array) and not isinstance(value, str)
            else repr(value)[:100]
        )
        return TokenizerError(f"{_PREFIX}{name}: expected {wanted}, got {shown}")
