"""A model on disk, a Hugging Face directory or GGUF files: its configuration, and which tensor lies where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.file_stamp import FileStamp
from unicorn_async.checkpoint.file_traits import NO_TRAITS, FileTraits
from unicorn_async.checkpoint.gguf.model import GgufModel
from unicorn_async.checkpoint.layer_parts import take_layers_apart
from unicorn_async.checkpoint.mxfp4 import joined_planes
from unicorn_async.checkpoint.names import PREDICTOR, canonical_name
from unicorn_async.checkpoint.packed.method import joined, packed_method
from unicorn_async.checkpoint.partial_file import NO_PARTIAL_FILES, is_there, stamp_of
from unicorn_async.checkpoint.pickles import refuse_pickles_in
from unicorn_async.checkpoint.quantisation import has_mxfp4, refuse_announced, refuse_quantised
from unicorn_async.checkpoint.rwkv_layout import (
    has_turned_networks,
    is_published,
    published_config,
    published_name,
)
from unicorn_async.checkpoint.safetensors import MAX_NAME_CHARS, read_header
from unicorn_async.checkpoint.source_tensor import SourceTensor
from unicorn_async.checkpoint.strict_json import JsonWalk, decode, read_json, read_object
from unicorn_async.errors import CheckpointError
from unicorn_async.lora_spec import ADAPTER_CONFIG_FILE
from unicorn_async.tensor import DType, QuantFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import TypeAlias

    from unicorn_async.checkpoint.gguf.fields import GgufValue
    from unicorn_async.checkpoint.partial_file import PartialFiles

    Check: TypeAlias = Callable[[Mapping[str, object], str], object]

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20  # 0.1 KB a tensor
MAX_INDEX_TENSORS = 1 << 18
_MAX_OTHERS, _MAX_OTHER_CHARS = 64, 1 << 16  # of what an index has beside the map, which is next to nothing
_MAX_FILE_NAME_CHARS = 2048  # of a file's name as JSON may write it
_MAX_NAME_BYTES = 255  # of a file, on any of Linux's file systems
_FIRST_EXPERT = ".experts.0."  # in names of its weights
_SHIFTS = ".attn.x_x"  # all that a layer's time mixing mixes by
_DENSE = frozenset(kind.value for kind in DType)
_BLOCK_TYPES = frozenset(kind.value for kind in QuantFormat)


def _any(config: Mapping[str, object], where: str) -> None:
    """Accept every configuration."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk; no tensor's bytes are read.

    `path` is its directory, or its first GGUF file. `config` has the keys of a config.json; errors about it name
    `config_name`. `tensors` are the language model's, by canonical name (`SourceTensor.name` is the file's own).
    `skipped` are the file names of vision and audio tensors, and of what GGUF files have beside the model. `stamps` are
    what the files were before their headers were read.
    `gguf_metadata` is None for a directory; the tokenizer is in it. `traits` go with `config`. What there is to
    predict a further token, beside the model's layers, is in `predictor`, by the models' names; of a directory what is
    dense. `partial` are those of the files that were not all there.
    """

    path: Path
    config: Mapping[str, object]
    files: tuple[Path, ...]
    tensors: Mapping[str, SourceTensor]
    skipped: tuple[str, ...]
    stamps: tuple[FileStamp, ...] = ()
    config_name: str = CONFIG_FILE
    gguf_metadata: Mapping[str, GgufValue] | None = None
    traits: FileTraits = NO_TRAITS
    predictor: Mapping[str, SourceTensor] = field(default_factory=dict)
    partial: PartialFiles = field(default_factory=dict)

    @property
    def is_quantised(self) -> bool:
        """Whether there are weights in blocks, which are never quantised again."""
        return any(source.dtype in _BLOCK_TYPES for source in self.tensors.values())

    def check_unchanged(self) -> None:
        """Check that the files are still what they were before their headers were read; it blocks on the disk.

        Raises:
            CheckpointError: one of them is another now, or is gone.
        """
        for path, stamp in zip(self.files, self.stamps, strict=True):
            stamp.check(path, FileStamp.of(path))

    @classmethod
    def read(cls, path: Path, check: Check = _any, partial: PartialFiles = NO_PARTIAL_FILES) -> Checkpoint:
        """Read the configuration and all headers of a directory or a GGUF file; it blocks on the disk.

        `check` looks at a directory's config.json before anything else is looked at: who is told that the weights are
        of a wrong kind has a model that can be run. Of `partial` files what it needs is waited for.

        Raises:
            CheckpointError: a file is missing, damaged or contradicts another.
            UnsupportedModelError: the model is of a kind that is not supported, or not in safetensors or GGUF files.
            DownloadError: a partial file's download has ended.
        """
        return cls._read_directory(path, check, partial) if path.is_dir() else cls._read_gguf(path, partial)

    @classmethod
    def _read_gguf(cls, path: Path, partial: PartialFiles) -> Checkpoint:
        model = GgufModel.read(path, partial)
        first = model.files[0]
        return cls(
            path=first,
            config=model.config,
            files=model.files,
            tensors=model.tensors,
            skipped=model.skipped,
            stamps=model.stamps,
            config_name=first.name,
            gguf_metadata=model.metadata,
            traits=model.traits,
            predictor=model.predictor,
            partial=partial,
        )

    @classmethod
    def _read_directory(cls, directory: Path, check: Check, partial: PartialFiles) -> Checkpoint:
        config, config_name = _config_of(directory)
        check(config, config_name)
        refuse_announced(config, directory)
        join = packed_method(config, str(directory))
        names, wanted = weight_files(directory, partial)
        files = tuple(directory / name for name in names)
        stamps = tuple(stamp_of(path, partial) for path in files)
        tensors: dict[str, SourceTensor] = {}
        skipped: list[str] = []
        predictor: dict[str, SourceTensor] = {}
        sources = {source.name: source for source in _sources(files, wanted, partial)}
        renamed = published_name if is_published(sources) else canonical_name
        for source in sources.values():
            if (name := renamed(source.name)) is None:
                skipped.append(source.name)
                if source.name.startswith(PREDICTOR) and source.dtype in _DENSE:
                    predictor[source.name] = source
            elif name in tensors:
                raise CheckpointError(f"{directory}: {source.name!r} and {tensors[name].name!r} are the same tensor")
            else:
                tensors[name] = source
        if has_mxfp4(config):
            tensors = joined_planes(tensors, directory)
        else:
            if join is not None:
                tensors, unread = joined(join, tensors, directory, files, partial)
                skipped += unread
            refuse_quantised(tensors.values(), directory)
        text = config.get("text_config", config)
        tensors = take_layers_apart(tensors, text.get("num_hidden_layers") if isinstance(text, dict) else None)
        traits = FileTraits(
            are_experts_apart=any(_FIRST_EXPERT in name for name in tensors),
            are_shifts_stacked=any(name.endswith(_SHIFTS) for name in tensors),
            are_networks_turned=is_published(sources) and has_turned_networks(tensors),
        )
        return cls(
            directory,
            config,
            files,
            tensors,
            tuple(skipped),
            stamps,
            config_name,
            traits=traits,
            predictor=predictor,
            partial=partial,
        )


def _config_of(directory: Path) -> tuple[dict[str, object], str]:
    """Return the configuration, and the file that it is read from, or made of the tensors that are in it."""
    weights = directory / SINGLE_FILE
    if not (directory / CONFIG_FILE).exists():
        if weights.is_file():
            shapes = {name: entry.shape for name, entry in read_header(weights).items()}
            if is_published(shapes):
                return published_config(shapes, str(weights)), SINGLE_FILE
        else:
            _refuse_adapter(directory)
            refuse_pickles_in(directory)
    return read_object(directory / CONFIG_FILE), CONFIG_FILE


def _refuse_adapter(directory: Path) -> None:
    if (directory / ADAPTER_CONFIG_FILE).exists():
        raise CheckpointError(
            f"{directory}: holds {ADAPTER_CONFIG_FILE} and no {CONFIG_FILE}: it is an adapter, which goes with the "
            "model that it changes: give that, and this with --lora"
        )


def weight_files(directory: Path, partial: PartialFiles = NO_PARTIAL_FILES) -> tuple[list[str], dict[str, str] | None]:
    """Return the names of the weight files, and which tensor the index puts where (None without an index).

    Raises:
        CheckpointError: one is missing, or the index can't be used.
    """
    if is_there(directory / SINGLE_FILE, partial):
        return [SINGLE_FILE], None
    index_path = directory / INDEX_FILE
    if not index_path.is_file():
        refuse_pickles_in(directory)
        raise CheckpointError(f"{directory}: neither {SINGLE_FILE} nor {INDEX_FILE} is there")
    wanted = read_index(index_path)
    names = sorted(set(wanted.values()))
    missing = [name for name in names if not is_there(directory / name, partial)]
    if missing:
        raise CheckpointError(f"{directory}: {len(missing)} of {len(names)} weight files missing, first {missing[0]}")
    return names, wanted


def read_index(path: Path) -> dict[str, str]:
    """Read an index's weight_map, each tensor's file; a file's name is one string, however many tensors it has.

    Raises:
        CheckpointError: it can't be read, or breaks the format's rules.
    """
    walk = JsonWalk(decode(read_json(path, MAX_INDEX_BYTES), str(path)), str(path))
    wanted: dict[str, str] = {}
    file_names: dict[str, str] = {}
    keys: set[str] = set()

    def tensor_member(tensor: str, at: int) -> int:
        if tensor in wanted:
            raise CheckpointError(f"{path}: key {tensor[:200]!r} appears twice")
        if len(tensor) > MAX_NAME_CHARS:
            raise CheckpointError(f"{path}: a name of {len(tensor)} characters, at most {MAX_NAME_CHARS} are allowed")
        if len(wanted) == MAX_INDEX_TENSORS:
            raise CheckpointError(f"{path}: weight_map: more than {MAX_INDEX_TENSORS} tensors")
        value, end = walk.value(at, _MAX_FILE_NAME_CHARS)
        if not isinstance(value, str) or (value not in file_names and not _is_plain(value)):
            raise CheckpointError(f"{path}: tensor {tensor[:200]!r}: {str(value)[:100]!r} is not a file name")
        wanted[tensor] = file_names.setdefault(value, value)
        return end

    def member(key: str, at: int) -> int:
        if key in keys:
            raise CheckpointError(f"{path}: key {key[:200]!r} appears twice")
        if len(keys) == _MAX_OTHERS:
            raise CheckpointError(f"{path}: more than {_MAX_OTHERS} keys beside weight_map")
        keys.add(key)
        return walk.members(at, tensor_member) if key == "weight_map" else walk.value(at, _MAX_OTHER_CHARS)[1]

    walk.whole(member)
    if not wanted:
        raise CheckpointError(f"{path}: weight_map: expected an object that is not empty")
    return wanted


def _is_plain(name: str) -> bool:
    if len(name.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES:
        return False
    return name.endswith(".safetensors") and not any(char in name for char in "/\\\0") and not name.startswith(".")


def _sources(files: tuple[Path, ...], wanted: dict[str, str] | None, partial: PartialFiles) -> Iterator[SourceTensor]:
    left = dict(wanted or {})
    for index, path in enumerate(files):
        for entry in read_header(path, partial).values():
            if wanted is None or left.get(entry.name) == path.name:
                left.pop(entry.name, None)
                yield SourceTensor.of(entry, index)
    if left:
        name, file_name = next(iter(left.items()))
        raise CheckpointError(f"{files[0].parent / file_name}: tensor {name!r}, which the index puts there, is missing")
