"""A LoRA adapter on disk, in PEFT's layout: adapter_config.json and adapter_model.safetensors, read as hostile input.

LoRA: https://arxiv.org/abs/2106.09685, rsLoRA: https://arxiv.org/abs/2312.03732.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.file_identity import MAX_HASHED_BYTES, FileIdentity
from unicorn_async.checkpoint.file_stamp import FileStamp
from unicorn_async.checkpoint.hub import find_in_hub, is_repo_name
from unicorn_async.checkpoint.names import canonical_name
from unicorn_async.checkpoint.safetensors import read_header
from unicorn_async.checkpoint.strict_json import parse_object, read_json
from unicorn_async.errors import CheckpointError, ConfigError, UnsupportedModelError
from unicorn_async.lora.config import LoraConfig
from unicorn_async.lora_spec import ADAPTER_CONFIG_FILE, ADAPTER_TENSORS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from unicorn_async.checkpoint.source_tensor import TensorEntry
    from unicorn_async.lora_spec import LoraSpec

DIGEST_VERSION = 1  # of how adapters are blended: another way needs another number
_PREFIX = "base_model.model."
_DTYPES = ("F32", "F16", "BF16")
_MAX_ELEMENTS = (1 << 31) - 1  # of a factor; kernels count in 32 bits
# lora_A.weight, lora_A.default.weight; for embeddings lora_embedding_A, lora_embedding_A.default
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(\.[^.]+?)??(?P<weight>\.weight)?")
_EMBEDDINGS = ("model.embed_tokens.weight",)


@dataclass(frozen=True, slots=True)
class LoraPair:
    """The two factors that change one weight: A (rank, columns) and B (rows, rank), W + scale · B · A.

    `target` is the weight's canonical name. For embeddings, (vocabulary, hidden), A is (rank, vocabulary) and B is
    (hidden, rank), W + scale · (B · A)^T. `scale` is without the adapter's weight.
    """

    target: str
    a: TensorEntry
    b: TensorEntry
    rank: int
    scale: float
    is_embedding: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the weight that the factors fit."""
        rows, columns = self.b.shape[0], self.a.shape[1]
        return (columns, rows) if self.is_embedding else (rows, columns)


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """An adapter, checked, and the weight that it is blended with; `pairs` are by canonical name of their target.

    `name` is its directory's, or the one in the Hugging Face cache.
    `skipped` are the names of tensors for vision and audio. `digest` is of the configuration and of what tells the
    tensors' file from others: all its bytes where these are few, see `FileIdentity` for more. `stamp` is what that
    file was then.
    """

    name: str
    path: Path
    weight: float
    pairs: Mapping[str, LoraPair]
    skipped: tuple[str, ...]
    digest: str
    stamp: FileStamp

    @property
    def tensors_path(self) -> Path:
        """The file with the factors."""
        return self.path / ADAPTER_TENSORS_FILE

    @classmethod
    def read(cls, spec: LoraSpec) -> LoraAdapter:
        """Find an adapter, and read its configuration, its header and what tells it from others.

        It blocks on the disk, for about as long whatever the size of the tensors.

        Raises:
            ConfigError: there is no such adapter.
            CheckpointError: a file is damaged or contradicts the other.
            UnsupportedModelError: the adapter needs what is not supported.
        """
        path = _find(spec.path)
        config_path, tensors_path = path / ADAPTER_CONFIG_FILE, path / ADAPTER_TENSORS_FILE
        _check_files(path)
        config_bytes = read_json(config_path)
        stamp = FileStamp.of(tensors_path)
        config = LoraConfig.parse(parse_object(config_bytes, str(config_path)), str(config_path))
        pairs, skipped = _pairs(read_header(tensors_path), config, str(tensors_path))
        digest = _digest(config_bytes, FileIdentity.of(tensors_path, stamp.nbytes))
        name = path.name if spec.path.expanduser().is_dir() else str(spec.path)
        return cls(name, path, float(spec.weight), pairs, skipped, digest, stamp)


def read_adapters(specs: Iterable[LoraSpec]) -> tuple[LoraAdapter, ...]:
    """Read several adapters in their order; raises as `LoraAdapter.read` does."""
    return tuple(LoraAdapter.read(spec) for spec in specs)


def lora_digest(adapters: Iterable[LoraAdapter]) -> str:
    """Return a digest of everything that decides what the adapters make of weights; "" without adapters."""
    lines = [f"{adapter.digest} {adapter.weight.hex()}" for adapter in adapters]
    if not lines:
        return ""
    return hashlib.sha256("\n".join([f"lora {DIGEST_VERSION}", *lines]).encode()).hexdigest()


def _digest(config: bytes, tensors: FileIdentity) -> str:
    """A digest of an adapter; where its file was hashed whole, neither time nor place of that count."""
    if tensors.nbytes <= MAX_HASHED_BYTES:
        tensors = FileIdentity(tensors.nbytes, tensors.header)
    return hashlib.sha256(hashlib.sha256(config).digest() + repr(tensors).encode()).hexdigest()


def _find(given: Path) -> Path:
    path = given.expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        what = "adapters in GGUF files are not supported" if path.suffix == ".gguf" else "expected a directory"
        files = f"{ADAPTER_CONFIG_FILE} and {ADAPTER_TENSORS_FILE}"
        raise ConfigError(f"adapter {given}: is a file: {what}; give a directory with {files}")
    snapshot = find_in_hub(str(given)) if is_repo_name(str(given)) else None
    if snapshot is None:
        raise ConfigError(
            f"adapter {given}: no such directory, and not in the Hugging Face cache; nothing is downloaded"
        )
    return snapshot


def _check_files(path: Path) -> None:
    if not (path / ADAPTER_CONFIG_FILE).is_file():
        raise ConfigError(f"adapter {path}: has no {ADAPTER_CONFIG_FILE}")
    if not (path / ADAPTER_TENSORS_FILE).is_file():
        if pickles := sorted(file.name for file in path.glob("*.bin")):
            raise UnsupportedModelError(
                f"adapter {path}: tensors in {pickles[0]}; only safetensors files are supported"
            )
        raise ConfigError(f"adapter {path}: has no {ADAPTER_TENSORS_FILE}")


def _pairs(
    entries: Mapping[str, TensorEntry], config: LoraConfig, source: str
) -> tuple[dict[str, LoraPair], tuple[str, ...]]:
    """Sort a file's tensors into pairs."""
    factors: dict[tuple[str, bool], dict[str, TensorEntry]] = {}
    skipped = []
    for entry in entries.values():
        module, is_embedding, side = _parsed(entry, source)
        if canonical_name(f"{module}.weight") is None:
            skipped.append(entry.name)
            continue
        sides = factors.setdefault((module, is_embedding), {})
        if side in sides:
            raise CheckpointError(f"{source}: {entry.name!r} and {sides[side].name!r} are the same tensor")
        sides[side] = entry
    pairs: dict[str, LoraPair] = {}
    for (module, is_embedding), sides in factors.items():
        pair = _pair(module, sides, config, source, is_embedding=is_embedding)
        if pair.target in pairs:
            raise CheckpointError(f"{source}: {pair.a.name!r} and {pairs[pair.target].a.name!r} change the same weight")
        pairs[pair.target] = pair
    if not pairs:
        raise UnsupportedModelError(f"{source}: has no tensors for the language model, {len(skipped)} for others")
    return pairs, tuple(skipped)


def _parsed(entry: TensorEntry, source: str) -> tuple[str, bool, str]:
    """The module that a tensor is for, whether as embeddings, and "A" or "B"."""
    where, name = f"{source}: tensor {entry.name!r}", entry.name.removeprefix(_PREFIX)
    found = _FACTOR.fullmatch(name)
    if found is None or bool(found["embedding"]) == bool(found["weight"]):
        raise UnsupportedModelError(f"{where}: {_what_it_is(name)}")
    if entry.dtype not in _DTYPES:
        raise UnsupportedModelError(f"{where}: dtype {entry.dtype} is not supported, only {', '.join(_DTYPES)}")
    if len(entry.shape) != 2 or entry.shape[0] * entry.shape[1] > _MAX_ELEMENTS:
        raise CheckpointError(
            f"{where}: expected two dimensions and at most {_MAX_ELEMENTS} elements, got shape {list(entry.shape[:8])}"
        )
    return found["module"], bool(found["embedding"]), found["side"]


def _what_it_is(name: str) -> str:
    if "lora_magnitude_vector" in name:
        return "belongs to DoRA, which is not supported"
    if name.endswith(".bias"):
        return "biases beside LoRA are not supported"
    if "lora_" not in name:
        return "a whole weight beside LoRA (modules_to_save, save_embedding_layers) is not supported"
    return "is no factor of a LoRA adapter for linear layers or embeddings"


def _pair(
    module: str, sides: Mapping[str, TensorEntry], config: LoraConfig, source: str, *, is_embedding: bool
) -> LoraPair:
    if len(sides) != 2:
        (side, entry), other = next(iter(sides.items())), "B" if "A" in sides else "A"
        raise CheckpointError(f"{source}: tensor {entry.name!r}: there is a lora_{side} without its lora_{other}")
    a, b = sides["A"], sides["B"]
    target = canonical_name(f"{module}.weight")
    assert target is not None, "others were skipped"
    if is_embedding != (target in _EMBEDDINGS):
        kind = "embeddings" if is_embedding else "a linear layer"
        raise CheckpointError(f"{source}: tensor {a.name!r}: is a factor for {kind}, which {module!r} is not")
    rank = config.rank_of(module)
    for entry, found in ((a, a.shape[0]), (b, b.shape[1])):
        if found != rank:
            raise CheckpointError(
                f"{source}: tensor {entry.name!r} of shape {list(entry.shape)} has rank {found}, "
                f"{ADAPTER_CONFIG_FILE} says {rank}"
            )
    return LoraPair(target, a, b, rank, config.scale_of(module), is_embedding)
