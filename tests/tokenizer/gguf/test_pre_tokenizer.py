"""Words of byte-level vocabularies beside what the tokenizer.json files of the models cut."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from unicorn_async.errors import TokenizerError
from unicorn_async.tokenizer.gguf.pre_tokenizer import pre_tokenizer

from .vocabularies import LLAMA3, QWEN2, TEXTS


def split(*patterns: str) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


DIGITS = pre_tokenizers.Digits(individual_digits=True)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
PUNCTUATION = r"\s?[!-/:-~！-／：-～‘-‟　-。]+"
IDEOGRAPHS = "[一-龥ࠀ-一가-퟿]+"
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KANA = "[一-龥぀-ゟ゠-ヿ]+"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPARK = DEEPSEEK3.replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
JAIS2 = LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + (
    r"\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)"
    r"|\s{1,2}(?!\S)|\s{1}"
)
YOUTU = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
RIGHT_GROUPS = r"\d{1,3}(?=(?:\d{3})*\b)"
BREAKS = pre_tokenizers.Split(Regex(r"(?:\r?\n)+(?!\r?\n)"), "merged_with_next")
NFC, NFKC = normalizers.NFC, normalizers.NFKC
EXAONE_MOE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
TRINITY_DIGITS = (
    r"\p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510}",
    r"\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z)",
    r"\A\p{Nd}{3}|\G\p{Nd}{3}",
)
TRINITY_SCRIPTS = (
    r"(?:[\u4E00-\u9FFF\u3040-\u309F\u30A0-\u30FF\u3400-\u4DBF\uf900-\uFAFF\uFF65-\uFF9F\u2F00-\u2FDF]+"
    r"|[\u0E00-\u0E7F]+|[\u0E80-\u0EFF]+|[\u1780-\u17FF]+|[\u1000-\u109F\uAA60-\uAA7F\uA9E0-\uA9FF]+"
    r"|[\uAC00-\uD7AF\u1100-\u11FF]+)"
)
AS_IN_THE_MODELS_FILES: dict[str, list[pre_tokenizers.PreTokenizer]] = {
    **dict.fromkeys(("chatglm-bpe", "falcon3", "glm4", "lfm2", "midm-2.0", "pixtral"), split(LLAMA3)),
    **dict.fromkeys(("dbrx", "smaug-bpe"), split(LLAMA3)),
    **dict.fromkeys(("f2llmv2", "grok-2", "hunyuan", "kormo", "megrez", "solar-open", "stablelm2"), split(QWEN2)),
    "qwen35": split(QWEN35),
    "ufakzeka": split(QWEN2.removeprefix(CONTRACTIONS + "|")),
    "jais-2": split(JAIS2),
    "minicpm5": split(r"\p{N}{1,3}", LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), split(BAILING)),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), split(BLOOM)),
    "viking": [*split(BLOOM), DIGITS],
    **dict.fromkeys(("cohere2moe", "tiny_aya"), split(RIGHT_GROUPS, GPT4O)),
    "deepseek-coder": [*split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", IDEOGRAPHS), DIGITS],
    "deepseek-llm": [*split("[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", PUNCTUATION, r"\s+$", IDEOGRAPHS), DIGITS],
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"), split(r"\p{N}{1,3}", KANA, DEEPSEEK3)),
    "spark2_5": [*split(r"\p{N}{1,3}", KANA, SPARK), DIGITS],
    **dict.fromkeys(("kanana2", "llama4", "minimax-m2", "talkie"), split(GPT4O)),
    "kimi-k2": split(KIMI),
    "youtu": split(YOUTU, GPT4O.replace("{1,3}", "")),
    "laguna": [BREAKS, *split(QWEN2)],
    "exaone": [DIGITS, GPT2],
    "exaone4": [GPT2],
    "exaone-moe": split(EXAONE_MOE),
    "afmoe": [pre_tokenizers.Digits(individual_digits=False), *split(*TRINITY_DIGITS, TRINITY_SCRIPTS, DEEPSEEK3)],
    "chameleon": [
        *split("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\t\n]|    |  )"),
        DIGITS,
        pre_tokenizers.Punctuation("isolated"),
        GPT2,
    ],
    "falcon": [
        pre_tokenizers.Punctuation("contiguous"),
        GPT2,
        pre_tokenizers.Digits(individual_digits=False),
        *split("[0-9][0-9][0-9]"),
    ],
    "superbpe": split(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    **{name: [GPT2] for name in ("a.x-4.0", "gigachat", "granite-docling", "jais", "mellum", "mpt", "olmo")},
    **{name: [GPT2] for name in ("phi-2", "trillion")},
    **{name: [DIGITS, GPT2] for name in ("codeshell", "mellum2", "minerva-7b", "starcoder")},
}
FORMS = {
    **dict.fromkeys(("exaone-moe", "f2llmv2", "hunyuan", "megrez", "mpt", "olmo", "qwen35", "stablelm2"), NFC),
    **dict.fromkeys(("exaone", "exaone4"), NFKC),
}
WHOLE_WORDS = ("chatglm-bpe", "falcon3", "glm4", "lfm2", "midm-2.0", "minicpm5", "pixtral", "youtu")


LETTERS = st.sampled_from(" \n\r\t'sſSlL012345½²٣٤aeinZéßñ日本龥가ーА́́ंकि。！‘’/.<>|-_!?[(🦄`$+=^~๓ກខကᄀｱ⼀ü貲")
LINES = [
    "a\r\nb\n\n\r\nc \n d\n\te\r\rf\n",
    "<sentinel:12><sentinel:x>IMGIMGABCDZ IMGIMGABCDEZ IMGIMGZ      five\tand\n\nmore  12.5%",
    "two words, 한국어 문장 하나  and more a b c/\n//d",
    "x² ½ ¼ü 貲 мир 1234½5678 `$x` a``b <<= ^^~~||",
]


@pytest.mark.parametrize("name", AS_IN_THE_MODELS_FILES)
def test_words_are_cut_as_the_files_of_the_models_cut_them(name: str) -> None:
    steps = AS_IN_THE_MODELS_FILES[name]
    last = [] if GPT2 in steps else [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    wanted = pre_tokenizers.Sequence([*steps, *last])
    rules = pre_tokenizer(name)
    assert rules.whole_words == (name in WHOLE_WORDS)
    assert rules.form is FORMS.get(name)
    found = rules.build()

    @settings(max_examples=300, deadline=None)
    @given(st.text(LETTERS))
    def check(text: str) -> None:
        assert found.pre_tokenize_str(text) == wanted.pre_tokenize_str(text)

    for text in [
        *TEXTS,
        *LINES,
        *(f"x{digit * count}y" for digit in "7٣๓" for count in (509, 510, 511, 1022, 1531)),
        "1234567x 1234567 12345_ ½12345 12345½678², 1" + " " * 1100 + "x",
    ]:
        assert found.pre_tokenize_str(text) == wanted.pre_tokenize_str(text)
    check()


@pytest.mark.parametrize("name", ["afmoe", "tiny_aya", "superbpe"])
@pytest.mark.parametrize("end", ["", "x"])
def test_the_work_of_counting_digits_in_threes_grows_with_their_number(name: str, end: str) -> None:
    words = pre_tokenizer(name).build()
    digits = 60_001  # half a minute where every group looks for the end of the number
    start = time.thread_time()  # whatever else this machine does
    cut = words.pre_tokenize_str("1" * digits + end)
    assert time.thread_time() - start < 10
    assert [word for word, _ in cut[:2]] == (["111", "111"] if end and name == "tiny_aya" else ["1", "111"])


@pytest.mark.parametrize("text", ["한국어 " * 20_000, "\n" * 60_001, "\r\n" * 30_000, "ab\u0301" * 20_000])
@pytest.mark.parametrize("name", ["exaone-moe", "laguna"])
def test_the_work_of_long_words_and_runs_of_breaks_grows_with_their_length(name: str, text: str) -> None:
    start = time.monotonic()
    assert pre_tokenizer(name).build().pre_tokenize_str(text)
    assert time.monotonic() - start < 10


def test_words_that_are_not_cut_exactly_are_refused_by_name() -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.pre 'falcon-h1' is not supported"):
        pre_tokenizer("falcon-h1")


def test_the_default_cuts_punctuation_and_three_digits() -> None:
    pieces = [piece for piece, _ in pre_tokenizer("default").build().pre_tokenize_str("it's 12345, ok")]
    assert pieces == ["it", "'", "s", "Ġ", "123", "45", ",", "Ġok"]
