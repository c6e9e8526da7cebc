"""Small tokenizers of the model families, laid out as their tokenizer.json and tokenizer_config.json are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.tokenizer.builders import CORPUS, GEMMA_TEMPLATE

from .metadata import (
    GEMMA4,
    SARVAM,
    byte_level_metadata,
    gemma4_metadata,
    sarvam_metadata,
    sentencepiece_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # Llama 3's; Qwen's has single digits
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEXTS = [
    *CORPUS,
    "The user asks, and the model answers: it's 12345 or 3.14, isn't it?",
    "def main(argv):\n    return [x for x in argv if x > 0]\n\n\n\t# done",
    "Naïve café, ÉCOLE, Ελληνικά, русский язык, العربية, हिन्दी, 日本語のテキスト, 한국어",
    "HTTPServer camelCase snake_case https://example.org/a/b?c=d&e=f",
]
_LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_QWEN_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}"
)
_MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}"
    "{% endif %}{% endfor %}"
)
_MISTRAL_3_TEMPLATE = _MISTRAL_TEMPLATE.replace("' [/INST]'", "'[/INST]'")


@dataclass(frozen=True)
class Family:
    """A family's tokenizer, in both layouts.

    `control` are its control tokens, `plain` the added ones that are found in any text. `named` are the tokens that the
    configuration names, `ends` the ids that end an answer. `scores` are None for byte-level vocabularies.
    """

    backend: Tokenizer
    pre: str  # "gemma4" is a kind of its own, not a name of byte-level words; "sarvam-moe" has pieces as well
    control: Sequence[str]
    plain: Sequence[str]
    named: Mapping[str, str]
    ends: Sequence[int]
    add_bos: bool
    template: str
    scores: Mapping[str, float] | None = None
    add_space_prefix: bool = False

    def write(self, directory: Path) -> Path:
        """Write the Hugging Face files."""
        directory.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(directory / "tokenizer.json"))
        names = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
        settings: dict[str, object] = {names[kind]: token for kind, token in self.named.items() if kind in names}
        settings |= {"add_bos_token": self.add_bos, "chat_template": self.template}
        (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": list(self.ends)}))
        return directory

    def metadata(self) -> dict[str, object]:
        """Return what a converter writes into a GGUF file."""
        if self.pre == GEMMA4:
            result = gemma4_metadata(self.backend, self.named)
        elif self.pre == SARVAM:
            result = sarvam_metadata(self.backend, self.named)
        elif self.scores is None:
            result = byte_level_metadata(self.backend, self.pre, self.named)
        else:
            prefix = self.add_space_prefix
            result = sentencepiece_metadata(self.backend, self.scores, self.named, add_space_prefix=prefix)
        return result | {"tokenizer.ggml.add_bos_token": self.add_bos, "tokenizer.chat_template": self.template}


@cache
def family(name: str) -> Family:
    """Return a family by its name in FAMILIES."""
    return FAMILIES[name]()


def _llama3() -> Family:
    control = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    backend = _byte_level([_words(WORDS)], control, (), ignore_merges=True)
    named = {"bos": control[0], "eos": control[4]}
    ends = [_id(backend, token) for token in (control[1], control[4])]
    return Family(backend, "llama-bpe", control, (), named, ends, True, _LLAMA_TEMPLATE)


def _qwen() -> Family:
    control, plain = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("<think>", "</think>", "<tool_call>")
    backend = _byte_level([_words(WORDS.replace("{1,3}", ""))], control, plain)
    backend.normalizer = normalizers.NFC()
    named = {"padding": control[0], "eos": control[2]}
    ends = [_id(backend, token) for token in (control[2], control[0])]
    return Family(backend, "qwen2", control, plain, named, ends, False, _QWEN_TEMPLATE)


def _tekken() -> Family:
    control = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>")
    backend = _byte_level([_words(TEKKEN)], control, (), ignore_merges=True)
    named = {"unknown": "<unk>", "bos": "<s>", "eos": "</s>", "padding": "<pad>"}
    return Family(backend, "tekken", control, (), named, [_id(backend, "</s>")], True, _MISTRAL_TEMPLATE)


def _gemma() -> Family:
    control = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
    runs = [text * count for text, most in (("\n", 32), ("▁", 32), ("\t", 5)) for count in range(2, most)]
    plain = (*runs, "<td>", "</td>", "<unused0>")
    backend, scores = _sentencepiece(control, plain, prefix=False)
    named = {"padding": "<pad>", "eos": "<eos>", "bos": "<bos>", "unknown": "<unk>"}
    return Family(backend, "default", control, plain, named, [1, 5], True, GEMMA_TEMPLATE, scores)


def _gemma4() -> Family:
    """Gemma's pieces, the merges of its tokenizer.json; newlines in a row lie among the pieces of plain text."""
    control = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|tool_response>")
    plain = (*("\n" * count for count in range(2, 32)), "<|channel>", "<channel|>")
    backend, _ = _sentencepiece(control, plain, prefix=False)
    named = {"padding": "<pad>", "eos": "<eos>", "bos": "<bos>", "unknown": "<unk>"}
    template = GEMMA_TEMPLATE.replace("<start_of_turn>", "<|turn>").replace("<end_of_turn>", "<turn|>")
    return Family(backend, GEMMA4, control, plain, named, [1, 5, 6], True, template)


def _sarvam() -> Family:
    """Pieces and merges as Gemma 4 has them; what is found in any text first has newlines and spaces in a row, too."""
    control = ("<pad>", "<eos>", "<bos>", "<unk>", "<|user|>", "<|assistant|>")
    runs = [text * count for text, least in (("\n", 1), ("▁", 2)) for count in range(least, 32)]
    backend, _ = _sentencepiece(control, (*runs, "<think>", "</think>"), prefix=False)
    named = {"padding": "<pad>", "eos": "<eos>", "bos": "<bos>", "unknown": "<unk>"}
    return Family(backend, SARVAM, control, (*runs, "<think>", "</think>"), named, [1], False, _QWEN_TEMPLATE)


def _mistral() -> Family:
    """The first version, as Llama 2 too has it: a space in front of every stretch of text, turns marked by text."""
    control = ("<unk>", "<s>", "</s>")
    backend, scores = _sentencepiece(control, (), prefix=True)
    named = {"unknown": "<unk>", "bos": "<s>", "eos": "</s>"}
    return Family(backend, "default", control, (), named, [2], True, _MISTRAL_TEMPLATE, scores, add_space_prefix=True)


def _mistral_3() -> Family:
    """The third version: a space in front of the whole text, unless it begins with one; control tokens mark turns."""
    control = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
    backend, scores = _sentencepiece(control, (), prefix=True)
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    named = {"unknown": "<unk>", "bos": "<s>", "eos": "</s>"}
    return Family(backend, "default", control, (), named, [2], True, _MISTRAL_3_TEMPLATE, scores, add_space_prefix=True)


def _phi4_mini() -> Family:
    pattern = (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    control = ("<|endoftext|>", "<|end|>", "<|user|>")
    backend = _byte_level([_words(pattern)], control, ())
    named = {"bos": control[0], "eos": control[1]}
    ends = [_id(backend, token) for token in control[:2]]
    return Family(backend, "gpt-4o", control, (), named, ends, False, _QWEN_TEMPLATE)


def _seed() -> Family:
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
        r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    control = ("<seed:bos>", "<seed:pad>", "<seed:eos>")
    backend = _byte_level([_words(pattern)], control, ())
    named = {"bos": control[0], "eos": control[2]}
    return Family(backend, "seed-coder", control, (), named, [_id(backend, control[2])], True, _QWEN_TEMPLATE)


def _command_r() -> Family:
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    control = ("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
    backend = _byte_level([pre_tokenizers.Digits(individual_digits=True), _words(words)], control, ())
    backend.normalizer = normalizers.NFC()
    named = {"bos": control[0], "eos": control[2]}
    return Family(backend, "command-r", control, (), named, [_id(backend, control[2])], True, _QWEN_TEMPLATE)


def _exaone4() -> Family:
    control = ("[PAD]", "[BOS]", "[EOS]", "[|endofturn|]", "[|user|]", "[|assistant|]")
    plain = ("<think>", "</think>")
    backend = _byte_level([], control, plain)
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    named = {"padding": control[0], "bos": control[1], "eos": control[3]}
    ends = [_id(backend, token) for token in ("[EOS]", "[|endofturn|]")]
    return Family(backend, "exaone4", control, plain, named, ends, False, _QWEN_TEMPLATE)


def _falcon() -> Family:
    """Digits are cut among the bytes' stand-ins, some of which are numbers."""
    control = ("<|endoftext|>", ">>TITLE<<")
    backend = _byte_level([], control, ())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )
    return Family(
        backend, "falcon", control, (), {"eos": control[0]}, [_id(backend, control[0])], False, _QWEN_TEMPLATE
    )


FAMILIES = {
    "llama3": _llama3,
    "qwen": _qwen,
    "gemma": _gemma,
    "gemma4": _gemma4,
    "sarvam": _sarvam,
    "exaone4": _exaone4,
    "falcon": _falcon,
    "mistral": _mistral,
    "mistral3": _mistral_3,
    "tekken": _tekken,
    "phi4_mini": _phi4_mini,
    "seed": _seed,
    "command_r": _command_r,
}


def _byte_level(
    cuts: Sequence[pre_tokenizers.PreTokenizer],
    control: Sequence[str],
    plain: Sequence[str],
    *,
    ignore_merges: bool = False,
) -> Tokenizer:
    """Byte-level BPE; as in the models, added tokens come behind the learnt ones."""
    backend = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    steps = [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(_TEXTS * 3, trainer)
    _add(backend, control, plain)
    return backend


def _sentencepiece(
    control: Sequence[str], plain: Sequence[str], *, prefix: bool
) -> tuple[Tokenizer, Mapping[str, float]]:
    """BPE of SentencePiece: learnt pieces have their rank as score, and every way to join one is a merge."""
    learner = Tokenizer(models.BPE())
    spaces = normalizers.Replace(" ", "▁")
    learner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
    learner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # no piece has a space inside
    learner.train_from_iterator(_TEXTS * 3, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    letters = [piece for piece in learnt["vocab"] if len(piece) == 1]
    joined = list(dict.fromkeys("".join(pair) for pair in learnt["merges"]))
    scores = {piece: -float(rank) for rank, piece in enumerate([*joined, *letters])}
    pieces = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *plain, *joined, *letters, "▁"]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    merges = _merges({**dict.fromkeys(plain, 1.0), **scores})
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    _add(backend, control, plain)
    return backend, scores


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every pair that joins to a piece, in the order of transformers' converter for SentencePiece models."""
    pairs = [
        (score, piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    pairs.sort(key=lambda pair: (pair[0], len(pair[1]), len(pair[2])), reverse=True)
    return [(left, right) for _, left, right in pairs]


def _words(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _add(backend: Tokenizer, control: Sequence[str], plain: Sequence[str]) -> None:
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])


def _id(backend: Tokenizer, token: str) -> int:
    found = backend.token_to_id(token)
    assert found is not None, token
    return int(found)
