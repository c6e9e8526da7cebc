"""How byte-level tokenizers cut text into words before they merge anything, by the names that GGUF files have for it.

Source: the tokenizer.json files of the models that the names stand for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import Regex, pre_tokenizers

from unicorn_async.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str) -> str:
    word = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return rf"{_CONTRACTIONS}|{word}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"


_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
)
_SEED = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Regular expressions that cut one after the other, each match being a word.

    `normalise` is for Unicode's composed form first; `whole_words` takes a word that is a token without merging.
    """

    patterns: tuple[str, ...]
    normalise: bool = False
    whole_words: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return it with the bytes' stand-ins put in as the last step."""
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_LLAMA3 = PreTokenizer((_words(r"\p{N}{1,3}"),), whole_words=True)
_THREE_DIGITS = PreTokenizer((_words(r"\p{N}{1,3}"),))
_ONE_DIGIT = PreTokenizer((r"\p{N}", _GPT2))
_QWEN2 = PreTokenizer((_words(r"\p{N}"),), normalise=True)
_KNOWN: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2.removesuffix(r"|\s+"), r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "deepseek-r1-qwen": _QWEN2,
    "qwen2": _QWEN2,
    "chatglm-bpe": _THREE_DIGITS,
    "command-r": PreTokenizer((r"\p{N}", _GPT2), normalise=True),
    "dbrx": _THREE_DIGITS,
    "exaone4": PreTokenizer((_GPT2,)),
    "glm4": _THREE_DIGITS,
    "gpt-4o": PreTokenizer((_GPT4O,)),
    "refact": _ONE_DIGIT,
    "seed-coder": PreTokenizer((_SEED,)),
    "smaug-bpe": _THREE_DIGITS,
    "smollm": _ONE_DIGIT,
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return the pre-tokenizer of a name.

    Raises:
        TokenizerError: the name is not known.
    """
    if name not in _KNOWN:
        known = ", ".join(sorted(_KNOWN))
        raise TokenizerError(f"tokenizer.ggml.pre {name[:100]!r} is not supported; known are {known}")
    return _KNOWN[name]
