"""Small vocabularies of either kind, made as the models of GGUF files have them, and texts for them."""

from __future__ import annotations

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from tests.tokenizer import builders

from .metadata import sentencepiece_metadata

NAMED = {"bos": "<bos>", "eos": "<eos>", "padding": "<pad>"}
TEXTS = [
    "",
    " ",
    "the turn of the  tide,   then\tthe end\n\nand \n the rest\r\n",
    "  leading and trailing  ",
    "It's we'll THEY'RE I'd 'tis",
    "0 12 123 1234567 3.14 1,000,000 ½ ٣",
    "Die Straße ist naß, größer als übermäßig; e\u0301 é",
    "数学は楽しい 你好世界 🦄👩‍👩‍👧 \u200b\ufeff",
    "<bos><start_of_turn>user\nhi<end_of_turn> <think>x</think> <0x41> ▁▁ [PAD7]",
    "x=1; y<=2 && z!=3 // a/b/c\n\n\n\n    return\n",
    "CamelCaseWord HTTPServer snake_case",
]
# Word patterns as the models' tokenizer.json files have them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def words(pattern: str) -> list[pre_tokenizers.PreTokenizer]:
    return [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


def byte_level(pre: str) -> Backend:
    """Train a byte-level tokenizer that cuts text as the models of a name do."""
    steps = {
        "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "llama-bpe": words(LLAMA3),
        "qwen2": words(QWEN2),
        "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "tekken": words(TEKKEN),
    }[pre]
    result = Backend(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    result.pre_tokenizer = pre_tokenizers.Sequence(steps)
    result.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        result.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = list(builders.SPECIAL)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    result.train_from_iterator([*builders.CORPUS, *TEXTS] * 3, trainer)
    result.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    result.add_tokens([AddedToken("<think>", normalized=False)])
    return result


def sentencepiece_scores(backend: Backend) -> dict[str, float]:
    """Scores that have pieces joined in the order of the builders' merges."""
    joined = ["▁t", "th", "▁th", "▁the", "en", "end", "▁▁"]
    scores = dict.fromkeys(backend.get_vocab(with_added_tokens=False), -100.0)
    return scores | {piece: -float(rank) for rank, piece in enumerate(joined)}


def sentencepiece(*, add_space_prefix: bool) -> tuple[Backend, dict[str, object]]:
    backend = builders.sentencepiece_prefixed() if add_space_prefix else builders.sentencepiece_bpe()
    scores = sentencepiece_scores(backend)
    named = NAMED | {"unknown": "<unk>"}
    return backend, sentencepiece_metadata(backend, scores, named, add_space_prefix=add_space_prefix)
