"""The demo model's tokenizer: byte-pair encoding with byte fallback, digits one by one, Gemma's control tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CONTROL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
PAD, EOS, BOS, UNK, START_OF_TURN, END_OF_TURN = range(len(CONTROL_TOKENS))
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
# A word, one digit, or a run of signs, each with the space before it; else white space.
_PIECES = Regex(r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+")

# System messages are left out: the model is too small to follow them.
CHAT_TEMPLATE = """\
{{ bos_token }}\
{%- for message in messages -%}
{%- if message['role'] == 'system' or message['role'] == 'developer' -%}
{%- elif message['role'] == 'user' -%}
{{ '<start_of_turn>user\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- elif message['role'] == 'assistant' or message['role'] == 'model' -%}
{{ '<start_of_turn>model\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- else -%}
{{ raise_exception('unknown role: ' + message['role']) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""


def make_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a tokenizer of exactly `vocab_size` tokens: control tokens, the 256 bytes, then what the texts contain."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(_PIECES, "isolated")
    num_learned = vocab_size - len(CONTROL_TOKENS) - len(_BYTES)
    trainer = trainers.BpeTrainer(vocab_size=num_learned, limit_alphabet=120, show_progress=False)
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    names = [*CONTROL_TOKENS, *_BYTES, *sorted(learned["vocab"], key=learned["vocab"].get)]
    model = models.BPE(
        vocab={name: index for index, name in enumerate(names)},
        merges=[tuple(merge) for merge in learned["merges"]],
        byte_fallback=True,
        unk_token=CONTROL_TOKENS[UNK],
        fuse_unk=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(_PIECES, "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", BOS)]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in CONTROL_TOKENS])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json."""
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"],
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = {"bos_token_id": BOS, "eos_token_id": [EOS, END_OF_TURN], "pad_token_id": PAD, "do_sample": False}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
