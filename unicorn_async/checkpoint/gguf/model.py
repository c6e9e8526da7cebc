"""A model in GGUF files: its configuration, and which tensor lies where."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.config import file_traits, gguf_config, json_config
from unicorn_async.checkpoint.gguf.fused import with_parts
from unicorn_async.checkpoint.gguf.header import read_header
from unicorn_async.checkpoint.gguf.keys import WITH_STILL_PAIRS
from unicorn_async.checkpoint.gguf.names import (
    WITH_EXPERTS,
    canonical_name,
    expert_names,
    factor_tensors,
    has_interleaved_heads,
    is_constant,
    layer_of,
    predictor_name,
)
from unicorn_async.checkpoint.gguf.ollama import is_ollama_gemma3, is_projector, ollama_gemma3_metadata
from unicorn_async.checkpoint.gguf.split import check_parts, part_paths
from unicorn_async.checkpoint.json_config import FACTOR_RANGE
from unicorn_async.checkpoint.layer_parts import take_layers_apart
from unicorn_async.checkpoint.partial_file import NO_PARTIAL_FILES, open_file, stamp_of
from unicorn_async.checkpoint.source_tensor import SourceTensor, TensorEntry
from unicorn_async.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from unicorn_async.checkpoint.file_stamp import FileStamp
    from unicorn_async.checkpoint.file_traits import FileTraits
    from unicorn_async.checkpoint.gguf.fields import GgufValue
    from unicorn_async.checkpoint.gguf.keys import GgufConfig
    from unicorn_async.checkpoint.partial_file import PartialFiles

_MAX_EXPERTS = 1024  # of a layer
_GATES = (".gate_proj.weight", ".w1.weight")
_STILL_RANGE = 1e31  # of divisors of rotary frequencies


@dataclass(frozen=True, slots=True)
class GgufModel:
    """What the headers of a model's files say.

    `metadata` is the first file's, tokenizer included. `config` has the keys of a config.json. `tensors` go by the
    models' names, and so does `predictor`, of the first layer behind the last. `skipped` are the file's names of
    constants that the models compute themselves, of tensors of layers that predict further tokens, and of a vision
    model inside. `stamps` are what the files were before their headers were read.
    """

    files: tuple[Path, ...]
    metadata: Mapping[str, GgufValue]
    config: Mapping[str, object]
    traits: FileTraits
    tensors: Mapping[str, SourceTensor]
    predictor: Mapping[str, SourceTensor]
    skipped: tuple[str, ...]
    stamps: tuple[FileStamp, ...]

    @classmethod
    def read(cls, path: Path, partial: PartialFiles = NO_PARTIAL_FILES) -> GgufModel:
        """Read the headers of the model that the file `path` is (a part of); it blocks on the disk.

        Of `partial` files it waits for what it needs.

        Raises:
            CheckpointError: a file is missing, damaged or contradicts another.
            UnsupportedModelError: the architecture, or something of it, is not supported.
        """
        files = part_paths(path, partial)
        stamps = tuple(stamp_of(file, partial) for file in files)
        headers = [read_header(file, partial) for file in files]
        check_parts(files, headers)
        metadata = headers[0].metadata
        architecture = metadata.get("general.architecture")
        entries = with_parts(_joined(files, [header.tensors for header in headers]), str(architecture), files)
        config = gguf_config(metadata, {name: entry for name, (entry, _) in entries.items()}, str(files[0]))
        factors = {
            name: _rope_factors(files[file], entry, config, partial)
            for name, (entry, file) in entries.items()
            if name in factor_tensors(config.architecture)
        }
        json = json_config(config, factors)
        if is_ollama_gemma3(config):
            metadata = ollama_gemma3_metadata(config, metadata)
        tensors, skipped = _sources(files, entries, config)
        predictor = _predictor_sources(files, entries, config)
        traits = replace(file_traits(config, factors), are_expert_gates_apart=_are_gates_apart(tensors))
        return cls(files, metadata, json, traits, tensors, predictor, skipped, stamps)


def _joined(files: tuple[Path, ...], headers: list[Mapping[str, TensorEntry]]) -> dict[str, tuple[TensorEntry, int]]:
    entries: dict[str, tuple[TensorEntry, int]] = {}
    for index, header in enumerate(headers):
        for name, entry in header.items():
            if name in entries:
                raise CheckpointError(f"{files[index]}: tensor {name!r} is in {files[entries[name][1]].name} as well")
            entries[name] = entry, index
    return entries


def _rope_factors(path: Path, entry: TensorEntry, config: GgufConfig, partial: PartialFiles) -> tuple[float, ...]:
    """The divisors of the rotary frequencies, one a pair."""
    where, num_pairs = f"{path}: tensor {entry.name!r}", config.num_rotary_pairs
    if entry.dtype != "F32" or entry.shape != (num_pairs,):
        raise CheckpointError(f"{where}: expected F32 of shape [{num_pairs}], got {entry.dtype} {list(entry.shape)}")
    try:
        with open_file(path, partial)[0] as file:
            file.seek(entry.offset)
            data = file.read(entry.nbytes)
    except OSError as exc:
        raise CheckpointError(f"{path}: {exc.strerror or exc}") from exc
    if len(data) != entry.nbytes:
        raise CheckpointError(f"{where}: truncated while it was read")
    factors: tuple[float, ...] = struct.unpack(f"<{num_pairs}f", data)
    low, high = FACTOR_RANGE
    most = _STILL_RANGE if config.architecture in WITH_STILL_PAIRS else high
    if not all(low <= factor <= most for factor in factors):
        raise CheckpointError(f"{where}: expected numbers from {low} to {most:g}")
    return factors


def _sources(
    files: tuple[Path, ...], entries: Mapping[str, tuple[TensorEntry, int]], config: GgufConfig
) -> tuple[dict[str, SourceTensor], tuple[str, ...]]:
    tensors: dict[str, SourceTensor] = {}
    skipped: list[str] = []
    for name, (entry, file) in entries.items():
        if layer_of(name) >= config.num_layers:
            skipped.append(name)
            continue
        if experts := _experts(files[file], entry, config):
            if any(part.name in tensors for part in experts):
                raise CheckpointError(f"{files[file]}: {name!r} is there twice")
            tensors |= {part.name: SourceTensor.of(part, file) for part in experts}
            continue
        canonical = canonical_name(name, config.architecture)
        if canonical is None and not is_constant(name) and not is_projector(name, config):
            raise UnsupportedModelError(f"{files[file]}: tensor {name!r} is not known for {config.architecture!r}")
        if canonical is None:
            skipped.append(name)
        elif canonical in tensors:
            raise CheckpointError(f"{files[file]}: {name!r} and {tensors[canonical].name!r} are the same tensor")
        else:
            rows = config.head_dim if has_interleaved_heads(name, config.architecture) else 0
            tensors[canonical] = SourceTensor.of(entry, file, interleaved_head_rows=rows)
    return take_layers_apart(tensors, config.num_layers), tuple(skipped)


def _are_gates_apart(tensors: Mapping[str, SourceTensor]) -> bool:
    """Whether gates of experts have other types than what they are for, with which they would lie in one matrix."""
    for name, gate in tensors.items():
        if ".experts." in name and name.endswith(_GATES):
            up = tensors.get(name.replace(".gate_proj.", ".up_proj.").replace(".w1.", ".w3."))
            if up is not None and up.dtype != gate.dtype:
                return True
    return False


def _predictor_sources(
    files: tuple[Path, ...], entries: Mapping[str, tuple[TensorEntry, int]], config: GgufConfig
) -> dict[str, SourceTensor]:
    """The tensors of the first layer behind the last, as far as they are what they should be: it need not be whole."""
    tensors: dict[str, SourceTensor] = {}
    for name, (entry, file) in entries.items():
        if layer_of(name) != config.num_layers:
            continue
        with suppress(CheckpointError):
            for part in _experts(files[file], entry, config) or [entry]:
                if (found := predictor_name(part.name, config.architecture)) is not None:
                    tensors[found] = SourceTensor.of(part, file)
    return {} if _are_gates_apart(tensors) else tensors


def _experts(path: Path, entry: TensorEntry, config: GgufConfig) -> list[TensorEntry]:
    """The matrices of a tensor that stacks those of all experts, by the models' names; none where it does not."""
    if config.architecture not in WITH_EXPERTS or not entry.name.endswith("_exps.weight"):
        return []
    count = config.count("expert_count")
    if count > _MAX_EXPERTS:
        raise config.unsupported("expert_count", f"{count}: at most {_MAX_EXPERTS} are supported")
    if len(entry.shape) != 3 or entry.shape[0] != count:
        raise CheckpointError(
            f"{path}: tensor {entry.name!r}: expected three dimensions, the first of {count} experts, "
            f"got shape {list(entry.shape)}"
        )
    names = expert_names(entry.name, config.architecture, count)
    halves = len(names) // count or 1
    _, rows, columns = entry.shape
    if rows % halves:
        raise CheckpointError(f"{path}: tensor {entry.name!r}: {rows} rows are no gates and as many others")
    nbytes = entry.nbytes // (count * halves)
    return [
        TensorEntry(name, entry.dtype, (rows // halves, columns), entry.offset + nbytes * index, nbytes)
        for index, name in enumerate(names)
    ]
