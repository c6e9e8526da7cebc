"""Which files of a repository make a model: no more than those are brought. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.checkpoint.checkpoint import CONFIG_FILE, INDEX_FILE, SINGLE_FILE
from unicorn_async.checkpoint.gguf.files import is_model_name, tag_of, tagged
from unicorn_async.checkpoint.gguf.split import model_stem, part_names
from unicorn_async.checkpoint.pickles import refuse_pickles
from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.lora_spec import ADAPTER_CONFIG_FILE, ADAPTER_TENSORS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unicorn_async.checkpoint.hub import HubName

_TOKENIZER, _WORLD_VOCABULARY = "tokenizer.json", "rwkv_vocab_v20230424.txt"
_ADAPTER = (ADAPTER_CONFIG_FILE, ADAPTER_TENSORS_FILE)
# What is read beside the weights; all but the first may be missing, and one of the next two.
_DESCRIPTIONS = (
    CONFIG_FILE,
    _TOKENIZER,
    _WORLD_VOCABULARY,
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "hf_quant_config.json",
    INDEX_FILE,
)
_PREFERRED_TAG = "q4_k_m"  # where nobody says which, as llama.cpp and Ollama have it
# No file of another name is looked at: what a server says becomes a path on this machine.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*(/[A-Za-z0-9_][\w.+-]*){0,2}")


class RepoFile(NamedTuple):
    """A file as the hub lists it; `sha256` is known of large ones alone."""

    name: str
    nbytes: int
    sha256: str | None


class NeededFiles(NamedTuple):
    """What describes a model, and its weights: None where the index among the descriptions says which they are."""

    descriptions: tuple[RepoFile, ...]
    weights: tuple[RepoFile, ...] | None
    is_adapter: bool = False


def needed_files(name: HubName, files: Iterable[RepoFile]) -> NeededFiles:
    """Choose the files of the model that a name asks for.

    A name without a tag is the safetensors model or an adapter, or else the GGUF model: of several Q4_K_M.

    Raises:
        ConfigError: there is no such model in the repository, or there are several; the message has their names.
        UnsupportedModelError: it has weights in another format, or a tokenizer in another one.
    """
    found = {file.name: file for file in files if _PLAIN_NAME.fullmatch(file.name) and ".." not in file.name}
    if name.tag is not None:
        return NeededFiles((), _gguf_model(name, found))
    has_tensors = SINGLE_FILE in found or INDEX_FILE in found
    is_model = has_tensors and CONFIG_FILE in found  # trainers put a model's configuration beside an adapter, too
    if not is_model and all(part in found for part in _ADAPTER):
        return NeededFiles((found[_ADAPTER[0]],), (found[_ADAPTER[1]],), is_adapter=True)
    if has_tensors:
        return _safetensors_model(name, found)
    if any(map(is_model_name, map(_base, found))):
        return NeededFiles((), _gguf_model(name, found))
    refuse_pickles(name, found)
    raise ConfigError(f"{name}: neither {SINGLE_FILE}, {INDEX_FILE} nor a GGUF file is in the repository")


def indexed_files(name: HubName, files: Iterable[RepoFile], wanted: Iterable[str]) -> tuple[RepoFile, ...]:
    """Return the weight files that an index names.

    Raises:
        ConfigError: the repository lacks one of them.
    """
    found = {file.name: file for file in files}
    missing = sorted(set(wanted) - found.keys())
    if missing:
        raise ConfigError(f"{name}: {INDEX_FILE} names {missing[0]}, which is not in the repository")
    return tuple(found[file] for file in sorted(set(wanted)))


def told(nbytes: float) -> str:
    """Return a size as people read it."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


def _safetensors_model(name: HubName, found: Mapping[str, RepoFile]) -> NeededFiles:
    if CONFIG_FILE not in found:
        raise ConfigError(f"{name}: {CONFIG_FILE} is not in the repository, which has safetensors files")
    if _TOKENIZER not in found and _WORLD_VOCABULARY not in found:
        raise UnsupportedModelError(
            f"{name}: {_TOKENIZER} is not in the repository; other tokenizers are not supported"
        )
    if SINGLE_FILE in found:
        small = tuple(found[file] for file in _DESCRIPTIONS if file in found and file != INDEX_FILE)
        return NeededFiles(small, (found[SINGLE_FILE],))
    return NeededFiles(tuple(found[file] for file in _DESCRIPTIONS if file in found), None)


def _gguf_model(name: HubName, found: Mapping[str, RepoFile]) -> tuple[RepoFile, ...]:
    parts = {Path(file): part_names(file) for file in found if is_model_name(_base(file))}
    whole = sorted({Path(names[0]) for names in parts.values() if all(part in found for part in names)})
    chosen = tagged(whole, _PREFERRED_TAG if name.tag is None else name.tag) if name.tag or len(whole) != 1 else whole
    if len(chosen) != 1:
        said = f"{len(chosen)} GGUF models are meant" if chosen else "no GGUF model of that tag is there"
        raise ConfigError(f"{name}: {said}; give one of {_choices(name, chosen or whole, parts, found)}")
    return tuple(found[part] for part in parts[chosen[0]])


def _choices(
    name: HubName, models: Sequence[Path], parts: Mapping[Path, Sequence[str]], found: Mapping[str, RepoFile]
) -> str:
    tags = [tag_of(path) for path in models]
    names = [tag if tags.count(tag) == 1 else model_stem(path) for tag, path in zip(tags, models, strict=True)]
    sizes = [sum(found[part].nbytes for part in parts[path]) for path in models]
    choices = (f"{name.repo}:{tag} ({told(nbytes)})" for tag, nbytes in zip(names, sizes, strict=True))
    return ", ".join(choices) or "none: it has no GGUF files"


def _base(name: str) -> str:
    return name.rpartition("/")[2]
