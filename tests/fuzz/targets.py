"""What reads files that nobody vouches for: each target takes a file's bytes, and reads or refuses them."""

from __future__ import annotations

import json
import time
import tracemalloc
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np

from tests.cache import cache_files
from tests.checkpoint import builders
from tests.checkpoint.gguf.builders import U32, File, array
from tests.gpu.made_up import DISCRETE, SOFTWARE
from tests.lora import adapters
from tests.ops.test_linear_rules import MATRIX_RDNA
from tests.tokenizer import builders as tokenizers
from tests.tokenizer.gguf.metadata import byte_level_metadata, sentencepiece_metadata
from tests.tune.tuning_tables import FORMS, PRODUCTS, table_of
from unicorn_async.cache.entry import ENTRY_FILE, CacheEntry
from unicorn_async.cache.folder import CacheFolder
from unicorn_async.checkpoint.gguf import fields
from unicorn_async.checkpoint.gguf.header import read_header as read_gguf_header
from unicorn_async.checkpoint.gguf.plain_strings import PlainStrings
from unicorn_async.checkpoint.safetensors import read_header
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import UnicornError
from unicorn_async.lora.adapter import LoraAdapter
from unicorn_async.lora_spec import LoraSpec
from unicorn_async.tokenizer import ChatMessage, Tokenizer
from unicorn_async.tune.choices import fitting, with_forms
from unicorn_async.tune.folder import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

NAMES = (
    "safetensors",
    "config",
    "index",
    "gguf",
    "gguf_part",
    "gguf_vocabulary",
    "tokenizer",
    "tokenizer_config",
    "chat_template",
    "adapter_config",
    "adapter_tensors",
    "cache_entry",
    "tuning_table",
)
HEADERS = tuple(name for name in NAMES if name not in ("tokenizer", "tokenizer_config", "chat_template"))
TEXT = "it's the 1st <bos> turn\n\n数🦄 <end_of_turn>"
FIXED_BYTES = 4 << 20  # whatever it is: caches of libraries, a message, a template's machine
BYTES_A_BYTE = 12  # a header's tensors as Python's objects; text with a character beyond 16 bits is four bytes each
SMALL_BYTES_A_BYTE = 32  # JSON that is parsed at once, of which MAX_MARKS leaves no more than SMALL_BYTES
SMALL_BYTES = 16 << 20
MOST_SECONDS = 20.0  # a chat template may take 5 of them, and this machine may have other things to do
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "tie_word_embeddings": True,
    "sliding_window": 16,
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}
_GEMMA = {
    **_CONFIG,
    "architectures": ["Gemma3ForCausalLM"],
    "layer_types": ["sliding_attention"],
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "query_pre_attn_scalar": 32,
    "rope_local_base_freq": 10000.0,
    "final_logit_softcapping": None,
}
_QWEN = {**_CONFIG, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "max_window_layers": 0}
_LAYER = {
    "input_layernorm": (32,),
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (32, 32),
    "self_attn.v_proj": (32, 32),
    "self_attn.o_proj": (32, 32),
    "post_attention_layernorm": (32,),
    "mlp.gate_proj": (32, 32),
    "mlp.up_proj": (32, 32),
    "mlp.down_proj": (32, 32),
}


@dataclass(frozen=True, slots=True)
class Target:
    """One reader: `read` takes a file's bytes, and raises UnicornErrors alone; `seeds` are sound files."""

    name: str
    seeds: Sequence[bytes]
    read: Callable[[bytes], object]


def most_allocated(file_bytes: int) -> int:
    """What a reader may allocate for a file."""
    return FIXED_BYTES + min(SMALL_BYTES_A_BYTE * file_bytes, SMALL_BYTES + BYTES_A_BYTE * file_bytes)


class BrokenPromise(AssertionError):
    """A reader raised something else, allocated more than its file explains, or took too long."""


def check(target: Target, data: bytes) -> bool:
    """Give data to a target; return whether it was read, and not refused.

    Raises:
        BrokenPromise: see there.
    """
    started = time.process_time()
    tracemalloc.start()
    try:
        target.read(data)
        was_read = True
    except UnicornError as exc:
        was_read = False
        if len(str(exc)) > 4000:
            raise BrokenPromise(f"{target.name}: a message of {len(str(exc))} characters") from exc
    except Exception as exc:
        raise BrokenPromise(f"{target.name}: {type(exc).__name__}: {exc}") from exc
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    seconds = time.process_time() - started
    if peak > most_allocated(len(data)):
        raise BrokenPromise(f"{target.name}: allocated {peak} bytes for a file of {len(data)}")
    if seconds > MOST_SECONDS:
        raise BrokenPromise(f"{target.name}: took {seconds:.1f} s for a file of {len(data)} bytes")
    return was_read


def make_targets(folder: Path) -> dict[str, Target]:
    """Return all targets by name; they write their files into folders of their own in `folder`."""
    makers = (
        _safetensors,
        _config,
        _index,
        _gguf,
        _gguf_part,
        _gguf_vocabulary,
        _tokenizer,
        _tokenizer_config,
        _chat_template,
        _adapter_config,
        _adapter_tensors,
        _cache_entry,
        _tuning_table,
    )
    found = [maker(folder / maker.__name__) for maker in makers]
    return {target.name: target for target in found}


def _safetensors(folder: Path) -> Target:
    path = _made(folder) / "model.safetensors"
    return Target("safetensors", [builders.file_bytes(_tensors())], _writing(path, lambda: read_header(path)))


def _config(folder: Path) -> Target:
    builders.write(folder, _tensors(), config=_CONFIG)
    seeds = [json.dumps(config).encode() for config in (_CONFIG, _GEMMA, _QWEN)]
    return Target("config", seeds, _writing(folder / "config.json", lambda: ModelFiles.read(folder)))


def _index(folder: Path) -> Target:
    tensors = _tensors()
    names = list(tensors)
    shards = [{name: tensors[name] for name in names[start::2]} for start in range(2)]
    builders.write(folder, *shards, config=_CONFIG)
    path = folder / "model.safetensors.index.json"
    return Target("index", [path.read_bytes()], _writing(path, lambda: ModelFiles.read(folder)))


def _gguf(folder: Path) -> Target:
    path = _made(folder) / "model.gguf"
    return Target("gguf", [_gguf_file().encode()], _writing(path, lambda: ModelFiles.read(path)))


def _gguf_part(folder: Path) -> Target:
    """The second file of two."""
    whole, first = _gguf_file(), _made(folder) / "m-00001-of-00002.gguf"
    names = list(whole.tensors)
    parts = []
    for index in range(2):
        split = {"split.no": U32(index), "split.count": U32(2), "split.tensors.count": U32(len(names))}
        metadata = {**(whole.metadata if index == 0 else {}), **split}
        parts.append(File(metadata, {name: whole.tensors[name] for name in names[index::2]}).encode())
    first.write_bytes(parts[0])
    path = folder / "m-00002-of-00002.gguf"
    return Target("gguf_part", [parts[1]], _writing(path, lambda: ModelFiles.read(first)))


def _gguf_vocabulary(folder: Path) -> Target:
    path = _made(folder) / "vocabulary.gguf"
    byte_level, pieces = tokenizers.byte_level(), tokenizers.sentencepiece_bpe()
    named = {"bos": "<bos>", "eos": "<eos>"}
    scores = {piece: -1.0 for piece in pieces.get_vocab(with_added_tokens=False)}
    seeds = [
        byte_level_metadata(byte_level, "qwen2", named),
        sentencepiece_metadata(pieces, scores, named | {"unknown": "<unk>"}, add_space_prefix=True),
    ]
    others = {"tokenizer.chat_template": tokenizers.GEMMA_TEMPLATE, "general.tags": ["", "a", "b" * 300, "é", ""] * 8}
    files = [File({"general.architecture": "llama", **metadata, **others}).encode() for metadata in seeds]

    def read() -> None:
        one_by_one = _strings_or_error(path)
        with patch.multiple(fields, _MANY=2, _PIECE_BYTES=1000):  # as hundreds of thousands are read
            if _strings_or_error(path) != one_by_one:
                raise AssertionError("strings that are read at once are others than one by one")
            metadata = read_gguf_header(path).metadata
        _use(Tokenizer.from_gguf(metadata))

    return Target("gguf_vocabulary", files, _writing(path, read))


def _strings_or_error(path: Path) -> object:
    """The strings of a GGUF file's metadata, or why there are none."""
    try:
        metadata = read_gguf_header(path).metadata
    except UnicornError as exc:
        return str(exc)
    return {key: tuple(value) for key, value in metadata.items() if isinstance(value, tuple | PlainStrings)}


def _tokenizer(folder: Path) -> Target:
    made = [tokenizers.byte_level(), tokenizers.sentencepiece_prefixed(), tokenizers.unigram()]
    tokenizers.write(folder, made[0])
    seeds = [backend.to_str().encode() for backend in made]
    return Target("tokenizer", seeds, _writing(folder / "tokenizer.json", lambda: _use(Tokenizer.load(folder))))


def _tokenizer_config(folder: Path) -> Target:
    tokenizers.write(folder, tokenizers.byte_level(), added_tokens_decoder={"5": {"content": "x", "special": True}})
    path = folder / "tokenizer_config.json"
    return Target("tokenizer_config", [path.read_bytes()], _writing(path, lambda: _use(Tokenizer.load(folder))))


def _chat_template(folder: Path) -> Target:
    tokenizers.write(folder, tokenizers.byte_level())
    path = folder / "chat_template.jinja"
    return Target(
        "chat_template", [tokenizers.GEMMA_TEMPLATE.encode()], _writing(path, lambda: _use(Tokenizer.load(folder)))
    )


def _adapter_config(folder: Path) -> Target:
    adapters.write_adapter(folder, adapters.factors("model.layers.0.self_attn.q_proj", 32, 32))
    seeds = [
        json.dumps(config).encode()
        for config in (
            adapters.CONFIG,
            adapters.CONFIG | {"rank_pattern": {r"layers\.0\.self_attn\.q_proj": 4}, "alpha_pattern": {"^q.*": 8}},
        )
    ]
    return Target("adapter_config", seeds, _writing(folder / "adapter_config.json", lambda: _read_adapter(folder)))


def _adapter_tensors(folder: Path) -> Target:
    adapters.write_adapter(folder, adapters.factors("model.layers.0.self_attn.q_proj", 32, 32))
    path = folder / "adapter_model.safetensors"
    return Target("adapter_tensors", [path.read_bytes()], _writing(path, lambda: _read_adapter(folder)))


def _cache_entry(folder: Path) -> Target:
    checkpoint = cache_files.write_checkpoint(_made(folder) / "model")
    entry = cache_files.write_entry(CacheFolder(folder / "weights"), checkpoint)
    path = next((folder / "weights").rglob(ENTRY_FILE))
    assert CacheEntry.read(path.parent) == entry
    return Target("cache_entry", [path.read_bytes()], _writing(path, lambda: CacheEntry.read(path.parent)))


def _tuning_table(folder: Path) -> Target:
    path = _made(folder) / "table.json"
    seeds = [replace(table_of(info, *PRODUCTS), forms=FORMS).to_json() for info in (SOFTWARE, DISCRETE)]
    return Target("tuning_table", seeds, _writing(path, lambda: _use_table(path)))


def _use_table(path: Path) -> None:
    table = read_table(path)
    for info in (SOFTWARE, DISCRETE, MATRIX_RDNA):
        tuned = with_forms(info, table.forms)
        for one in table.choices:
            fitting(tuned, one)


def _read_adapter(folder: Path) -> LoraAdapter:
    return LoraAdapter.read(LoraSpec(folder, 1.0))


def _use(tokenizer: Tokenizer) -> None:
    """Encode and decode a little; a model without a template, or one that refuses the messages, is fine."""
    ids = tokenizer.encode(TEXT)
    tokenizer.decode(ids)
    if tokenizer.has_chat_template:
        tokenizer.encode_chat([ChatMessage("user", TEXT)])


def _writing(path: Path, read: Callable[[], object]) -> Callable[[bytes], object]:
    def write_and_read(data: bytes) -> object:
        path.write_bytes(data)
        return read()

    return write_and_read


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _tensors() -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    shapes = {
        "model.embed_tokens": (320, 32),
        **{f"model.layers.0.{name}": shape for name, shape in _LAYER.items()},
        "model.norm": (32,),
    }
    return {f"{name}.weight": builders.tensor("BF16", *shape) for name, shape in shapes.items()}


def _gguf_file() -> File:
    arch = {
        "embedding_length": 32,
        "block_count": 1,
        "feed_forward_length": 32,
        "attention.head_count": 1,
        "attention.head_count_kv": 1,
        "attention.key_length": 32,
        "context_length": 64,
    }
    metadata: dict[str, object] = {"general.architecture": "llama", "general.file_type": U32(1)}
    metadata |= {f"llama.{key}": U32(value) for key, value in arch.items()}
    metadata |= {"llama.attention.layer_norm_rms_epsilon": 1e-6, "llama.rope.freq_base": 10000.0}
    names = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    shapes = {"token_embd": (320, 32), "output_norm": (32,)}
    shapes |= {f"blk.0.{name}": (32,) if name.endswith("norm") else (32, 32) for name in names}
    values = {f"{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
    tensors = {name: array("F32" if value.ndim == 1 else "F16", value) for name, value in values.items()}
    return File(metadata, tensors | {"rope_freqs.weight": array("F32", np.ones(16, np.float32))})
