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
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Letters that have a case, but for those of mathematics.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_IDEOGRAPHS = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_MARKS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"


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
_WORDS_OF_GPT2 = PreTokenizer((_GPT2,))
_KNOWN: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2.removesuffix(r"|\s+"), r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _WORDS_OF_GPT2,
    "a.x-4.0": _WORDS_OF_GPT2,
    "exaone4": _WORDS_OF_GPT2,
    "mellum": _WORDS_OF_GPT2,
    "olmo": PreTokenizer((_GPT2,), normalise=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "chatglm-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "glm4": _LLAMA3,
    "lfm2": _LLAMA3,
    "midm-2.0": _LLAMA3,
    "pixtral": _LLAMA3,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "qwen2": _QWEN2,
    "qwen35": PreTokenizer((_QWEN35,), normalise=True),
    "dbrx": _THREE_DIGITS,
    "smaug-bpe": _THREE_DIGITS,
    "command-r": PreTokenizer((r"\p{N}", _GPT2), normalise=True),
    "deepseek-coder": PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, r"\p{N}")),
    "deepseek-llm": PreTokenizer(
        ("[\r\n]", rf"\s?[{_CASED}]+", rf"\s?{_MARKS}", r"\s+$", _IDEOGRAPHS, r"\p{N}"),
    ),
    "gpt-4o": PreTokenizer((_GPT4O,)),
    "refact": _ONE_DIGIT,
    "seed-coder": PreTokenizer((_SEED,)),
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
