"""How byte-level tokenizers cut text into words before they merge anything, by the names that GGUF files have for it.

Source: the tokenizer.json files of the models that the names stand for, and llama.cpp's `llama-vocab.cpp`; where these
two cut differently, the models' files hold. Where digits are counted in threes from the end of a number, the files look
ahead to it from every group, and their work grows with the square of the digits; the expressions here cut in the same
places, and look to the end once. Names whose words can't be cut exactly are not known: Falcon-H1's are told to be Llama
3's by llama.cpp, and words that end where capitals begin, with single digits, by readers of its files.

What llama.cpp leaves out, or does otherwise:

- Normal forms. EXAONE's files have NFKC, up to its mixture, for which K-EXAONE's technical report tells of NFC instead;
  Stable LM 2's and Hunyuan's own tokenizers (`tokenization_arcade100k.py`, `tokenization_hy.py`) have NFC.
- Falcon counts digits among the stand-ins of bytes, some of which are numbers: superscripts and fractions.
- Laguna begins a word with each run of line breaks, of which "\r\n" is one, and leaves what is before it alone.
- AFMoE's (Trinity's) digits are those of all scripts, and each script's words end where another script begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tokenizers import Regex, normalizers, pre_tokenizers

from unicorn_async.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str, before: str = rf"{_CONTRACTIONS}|", space: str = _SPACE) -> str:
    word = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return rf"{before}{word}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{space}"


def _cased_words(digits: str, *, letters: str = "", marks: str = r"[\r\n/]*") -> str:
    """Words that end where capitals begin; `letters` narrows what a word is made of."""
    upper, lower = f"[{_UPPER}{letters}]", f"[{_LOWER}{letters}]"
    first = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{first}{upper}*{lower}+{_CONTRACTIONS}?|{first}{upper}+{lower}*{_CONTRACTIONS}?"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{marks}|{_SPACE}"


def _marked_words(marks: str, newlines: str) -> str:
    """Words with their combining marks, and with one mark of ASCII before Latin letters."""
    latin = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    word = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    return rf"{latin}|{word}| ?[\p{{P}}\p{{S}}]+{marks}|{newlines}|\s+(?!\S)|\s+"


_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
)
_GPT4O = _cased_words(r"\p{N}{1,3}")
_KIMI = r"\p{Han}+|" + _cased_words(r"\p{N}{1,3}", letters=r"&&[^\p{Han}]", marks=r"[\r\n]*")
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_BAILING = _words(r"\p{N}", before=r"'(?i:[sdmt]|ll|ve|re)|", space=r"\s*[\r\n]|\s+(?!\S)|\s+")
_JAIS_SPACE = "|".join(
    [r"\s*[\r\n]+", *(rf"\s{{{1 << bits}}}(?!\S)" for bits in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s"]
)
_YOUTU_SCRIPTS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_CHINESE_AND_KANA = "[一-龥぀-ゟ゠-ヿ]+"
# Digits in threes from the number's end, where no letter follows it; what is left of it falls to the words' own threes.
_WHOLE_NUMBER = (r"(?<!\d)\d++\b", r"\A\d{1,2}(?=(?:\d{3})+\z)")
# The same wherever it ends; what else counts as a number stays with the digits before it, and so do the digits that are
# too few behind that.
_THREES = (
    r"\p{N}+",
    r"(?:\d{3})+(?!\d)(?:[^\d]+(?:\d{1,2}(?!\d)|\d{1,2}(?=(?:\d{3})+(?!\d)))?)*",
    r"\d{3}(?=\d)",
)
_SEED = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"
)
_BREAKS = r"(?:\r?\n)+(?:[^\r\n]|\r(?!\n))*"  # and what is between them and the next ones
_PHRASES = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}(?:\p{{M}}| ?\p{{L}})*+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SCRIPTS = (
    "[\u2f00-\u2fdf\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff65-\uff9f]+|[\u0e00-\u0e7f]+"
    "|[\u0e80-\u0eff]+|[\u1780-\u17ff]+|[\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f]+|[\u1100-\u11ff\uac00-\ud7af]+"
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


Cut: TypeAlias = str | pre_tokenizers.PreTokenizer


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """What cuts one after the other: regular expressions, each match being a word, or the library's own steps.

    `form` is the normal form of Unicode that text gets first; `whole_words` takes a word that is a token without
    merging. `of_bytes` cut once bytes have their stand-ins.
    """

    cuts: tuple[Cut, ...]
    form: type[normalizers.Normalizer] | None = None
    whole_words: bool = False
    of_bytes: tuple[Cut, ...] = ()

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return it with the bytes' stand-ins put in."""
        bytes_step = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*map(_step, self.cuts), bytes_step, *map(_step, self.of_bytes)])


def _step(cut: Cut) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(cut), "isolated") if isinstance(cut, str) else cut


_LLAMA3 = PreTokenizer((_words(r"\p{N}{1,3}"),), whole_words=True)
_THREE_DIGITS = PreTokenizer((_words(r"\p{N}{1,3}"),))
_ONE_DIGIT = PreTokenizer((r"\p{N}", _GPT2))
_QWEN2 = PreTokenizer((_words(r"\p{N}"),), form=normalizers.NFC)
_WORDS_OF_GPT2 = PreTokenizer((_GPT2,))
_NORMALISED_GPT2 = PreTokenizer((_GPT2,), form=normalizers.NFC)
_PLAIN_QWEN2 = PreTokenizer((_words(r"\p{N}"),))
_CASED_WORDS = PreTokenizer((_GPT4O,))
_BLOOM_WORDS = PreTokenizer((_BLOOM,))
_LING = PreTokenizer((_BAILING,))
_DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", _CHINESE_AND_KANA, _marked_words(r"[\r\n]*", r"\s*[\r\n]+")))
_COHERE = PreTokenizer((*_WHOLE_NUMBER, _GPT4O))
_FALCON = PreTokenizer((pre_tokenizers.Punctuation("contiguous"), _GPT2), of_bytes=(r"\p{N}+", "[0-9][0-9][0-9]"))
_TRINITY = PreTokenizer(
    (
        pre_tokenizers.Digits(individual_digits=False),
        *(r"\p{Nd}++", r"\A\p{Nd}{1,2}(?=(?:\p{Nd}{3})+\z)", r"\p{Nd}{3}"),
        _SCRIPTS,
        _marked_words(r"[\r\n]*", r"\s*[\r\n]+"),
    )
)
_CHAMELEON = PreTokenizer(
    (
        *("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\t\n]|    |  "),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Punctuation("isolated"),
        _GPT2,
    )
)
_KNOWN: Mapping[str, PreTokenizer] = {
    "afmoe": _TRINITY,
    "chameleon": _CHAMELEON,
    "falcon": _FALCON,
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2.removesuffix(r"|\s+"), r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("a.x-4.0", "gigachat", "gpt-2", "granite-docling"), _WORDS_OF_GPT2),
    **dict.fromkeys(("jais", "mellum", "phi-2", "trillion"), _WORDS_OF_GPT2),
    **dict.fromkeys(("mpt", "olmo"), _NORMALISED_GPT2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "chatglm-bpe", "falcon3", "glm4"), _LLAMA3),
    **dict.fromkeys(("lfm2", "midm-2.0", "pixtral"), _LLAMA3),
    **dict.fromkeys(("deepseek-r1-qwen", "f2llmv2", "hunyuan", "megrez", "qwen2", "stablelm2"), _QWEN2),
    **dict.fromkeys(("grok-2", "kormo", "solar-open"), _PLAIN_QWEN2),
    "qwen35": PreTokenizer((_QWEN35,), form=normalizers.NFC),
    "laguna": PreTokenizer((_BREAKS, _words(r"\p{N}"))),
    "ufakzeka": PreTokenizer((_words(r"\p{N}", before=""),)),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _THREE_DIGITS),
    "jais-2": PreTokenizer((_words(r"\p{N}{1,3}", space=_JAIS_SPACE),)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), whole_words=True),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _LING),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), _BLOOM_WORDS),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "command-r": PreTokenizer((r"\p{N}", _GPT2), form=normalizers.NFC),
    **dict.fromkeys(("cohere2moe", "tiny_aya"), _COHERE),
    "deepseek-coder": PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, r"\p{N}")),
    "deepseek-llm": PreTokenizer(
        ("[\r\n]", rf"\s?[{_CASED}]+", rf"\s?{_MARKS}", r"\s+$", _IDEOGRAPHS, r"\p{N}"),
    ),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"), _DEEPSEEK3),
    "spark2_5": PreTokenizer((r"\p{N}", _CHINESE_AND_KANA, _marked_words("", r"[\r\n]"))),
    **dict.fromkeys(("gpt-4o", "kanana2", "llama4", "minimax-m2", "talkie"), _CASED_WORDS),
    "kimi-k2": PreTokenizer((_KIMI,)),
    "youtu": PreTokenizer((_YOUTU_SCRIPTS, _cased_words(r"\p{N}")), whole_words=True),
    **dict.fromkeys(("codeshell", "mellum2", "minerva-7b", "refact", "smollm", "starcoder"), _ONE_DIGIT),
    "exaone": PreTokenizer(_ONE_DIGIT.cuts, normalizers.NFKC),
    "exaone4": PreTokenizer((_GPT2,), normalizers.NFKC),
    "exaone-moe": PreTokenizer((_PHRASES,), normalizers.NFC),
    "seed-coder": PreTokenizer((_SEED,)),
    "superbpe": PreTokenizer(_THREES),
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
