"""Small tokenizers in Hugging Face's layout, built where they are needed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from unicorn_async.tokenizer.encoder import BackendEncoder

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.tokenizer import Tokenizer

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "start of turn, end of turn, user and model",
    "Die Straße ist naß, größer als übermäßig",
    "1 + 2 = 3; x < y and y > z <turn>",
    "数学は楽しい 你好世界",
]


def sentencepiece_bpe() -> tokenizers.Tokenizer:
    """BPE over text with spaces as U+2581 and byte fallback, as Gemma and Llama 2 have it."""
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    letters = sorted({char for line in CORPUS[:4] for char in line} - {" "})
    merges = [("▁", "t"), ("t", "h"), ("▁t", "h"), ("▁th", "e"), ("e", "n"), ("en", "d"), ("▁", "▁")]
    vocab = list(dict.fromkeys([*pieces, *letters, *(left + right for left, right in merges)]))
    model = models.BPE(
        vocab={piece: index for index, piece in enumerate(vocab)},
        merges=merges,
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    result = tokenizers.Tokenizer(model)
    result.normalizer = normalizers.Replace(" ", "▁")
    result.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    _finish(result)
    return result


def sentencepiece_prefixed() -> tokenizers.Tokenizer:
    """The same with a space put before the text, and taken off when decoding, as Llama 2 has it."""
    result = sentencepiece_bpe()
    result.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    result.decoder = decoders.Sequence(steps)
    return result


def byte_level() -> tokenizers.Tokenizer:
    """Byte-level BPE, as Llama 3 and Qwen have it."""
    result = tokenizers.Tokenizer(models.BPE())
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    result.train_from_iterator(CORPUS, trainer)
    _finish(result)
    return result


def unigram() -> tokenizers.Tokenizer:
    """Unigram with Metaspace and byte fallback, as T5's relatives have it."""
    letters = sorted({char for line in CORPUS[:4] for char in line} - {" "})
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [*SPECIAL, *bytes_, "▁", "▁the", "▁turn", "th", *letters]
    model = models.Unigram([(piece, -float(i) / 100) for i, piece in enumerate(pieces)], unk_id=3, byte_fallback=True)
    result = tokenizers.Tokenizer(model)
    result.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    result.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    _finish(result)
    return result


def backend(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Return the library's tokenizer behind one of ours."""
    encoder = tokenizer.encoder
    assert isinstance(encoder, BackendEncoder)
    return encoder.backend


def write(
    directory: Path, backend: tokenizers.Tokenizer, *, template: str | None = GEMMA_TEMPLATE, **config: object
) -> Path:
    """Write a model's tokenizer files."""
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    fields: dict[str, object] = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    if template is not None:
        fields["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(fields | config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 5]}))
    return directory


def _finish(backend: tokenizers.Tokenizer) -> None:
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("<think>", normalized=False)])
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
