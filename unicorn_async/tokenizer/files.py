"""The small files around a tokenizer: special tokens, end tokens, the chat template's source."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_FILE_BYTES = 16 << 20
MAX_MARKS = 1 << 18  # commas, colons and opening brackets; large files describe some thousand tokens, with a dozen each
MAX_MODEL_BYTES = 256 << 20  # of a tokenizer.json, which is read in a process of its own
LARGE_BYTES = 2 << 20  # of a tokenizer.json, which then takes 0.05 s and more
_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a model's directory says about its tokenizer beside tokenizer.json.

    `special_tokens` are named tokens' strings, `control_strings` all strings that are marked as special.
    `add_bos` is None where nothing is said. `eos_token_ids` are as generation_config.json or config.json has them.
    """

    special_tokens: Mapping[str, str]
    control_strings: frozenset[str]
    add_bos: bool | None
    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    add_eos: bool = False  # behind a text that nothing follows; else it is as tokenizer.json has it

    @classmethod
    def read(cls, directory: Path) -> TokenizerFiles:
        """Read the files in `directory`; any of them may be missing.

        Raises:
            TokenizerError: a file can't be read or is not a JSON object.
        """
        config = _read_object(directory / "tokenizer_config.json")
        special = {name: text for name in _TOKEN_NAMES if (text := _content(config.get(name)))}
        add_bos = config.get("add_bos_token")
        return cls(
            special,
            frozenset(special.values()) | _marked_special(config),
            add_bos if isinstance(add_bos, bool) else None,
            _eos_token_ids(directory),
            _chat_template(directory, config),
            config.get("add_eos_token") is True,
        )


def check_model(path: Path) -> None:
    """Refuse a tokenizer.json that makes the library end the process; large ones are read in a process of their own.

    BPE cuts the prefix of continued words from tokens without looking, and no supported family has one.

    Raises:
        TokenizerError: it has such a prefix, is no JSON object, or is too large.
    """
    nbytes = path.stat().st_size
    if nbytes > MAX_MODEL_BYTES:
        raise TokenizerError(f"{path}: {nbytes} bytes, at most {MAX_MODEL_BYTES} are allowed")
    if nbytes >= LARGE_BYTES:
        return
    model = _read_object(path, max_marks=LARGE_BYTES).get("model")
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    if prefix:
        raise TokenizerError(f"{path}: continuing_subword_prefix is not supported, got {str(prefix)[:100]!r}")


def _read_object(path: Path, *, max_marks: int = MAX_MARKS) -> dict[str, object]:
    text = _read_text(path)
    if text is None:
        return {}
    marks = sum(map(text.count, ",:[{"))
    if marks > max_marks:
        raise TokenizerError(f"{path}: {marks} commas, colons and brackets, at most {max_marks} are allowed")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise TokenizerError(f"{path}: not valid JSON ({exc})") from exc
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _read_text(path: Path) -> str | None:
    if path.exists() and not path.is_file():  # a pipe would never end
        raise TokenizerError(f"{path}: is no regular file")
    try:
        with path.open(encoding="utf-8") as file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes > MAX_FILE_BYTES:
                raise TokenizerError(f"{path}: {nbytes} bytes, at most {MAX_FILE_BYTES} are allowed")
            return file.read(nbytes)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise TokenizerError(f"{path}: {exc}") from exc


def _content(value: object) -> str | None:
    """A token is a string, or an object with its string as `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError as exc:  # JSON may escape half a character
        raise TokenizerError(f"tokenizer_config.json: token {value[:100]!r} is not valid Unicode") from exc
    return value


def _marked_special(config: Mapping[str, object]) -> frozenset[str]:
    result: set[str] = set()
    added = config.get("added_tokens_decoder")
    for token in added.values() if isinstance(added, dict) else ():
        if isinstance(token, dict) and token.get("special") is True and (text := _content(token)):
            result.add(text)
    additional = config.get("additional_special_tokens")
    result.update(text for token in (additional if isinstance(additional, list) else ()) if (text := _content(token)))
    return frozenset(result)


def _eos_token_ids(directory: Path) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        config = _read_object(directory / name)
        text_config = config.get("text_config")
        sections = [config, text_config] if isinstance(text_config, dict) else [config]
        for section in sections:
            value = section.get("eos_token_id")
            ids = value if isinstance(value, list) else [value]
            found = tuple(token_id for token_id in ids if type(token_id) is int and token_id >= 0)
            if found:
                return found
    return ()


def _chat_template(directory: Path, config: Mapping[str, object]) -> str | None:
    source = _read_text(directory / "chat_template.jinja")
    if source is not None:
        return source
    value = config.get("chat_template")
    if value is None:
        value = _read_object(directory / "chat_template.json").get("chat_template")
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default", next(iter(named.values())) if len(named) == 1 else None)
    return value if isinstance(value, str) else None
