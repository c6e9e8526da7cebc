"""Golden checkpoints with a tokenizer, so that an engine can open them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.golden.cases import CASES
from tests.golden.checkpoints import write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

_SPECIAL = {"<pad>": 0, "<eos>": 1, "<bos>": 2}
_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def write_model(name: str, dtype: str, directory: Path) -> Path:
    """Write a golden case and a tokenizer of its vocabulary's size; return the directory."""
    write_checkpoint(name, directory, dtype)
    vocab_size = CASES[name].text_config["vocab_size"]
    assert isinstance(vocab_size, int)
    write_tokenizer(directory, vocab_size)
    return directory


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """Write a byte-level tokenizer: after the control tokens one token for each byte, then pairs of lower-case letters.

    Random weights choose any token, so every one of them has a text, and stop strings can be looked for in it.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = [chr(ord("a") + index) for index in range(26)]
    pairs = [(first, second) for first in letters for second in letters]
    pieces = [*_SPECIAL, *alphabet]
    merges = pairs[: vocab_size - len(pieces)]
    pieces += [first + second for first, second in merges]
    backend = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(_SPECIAL))
    backend.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": True, "chat_template": _TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
