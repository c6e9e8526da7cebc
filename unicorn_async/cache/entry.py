"""An entry of the cache as its entry.json describes it, which is read as hostile input."""

from __future__ import annotations

import json
import re
import stat
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from unicorn_async.cache.key import FORMAT_VERSION
from unicorn_async.checkpoint.strict_json import parse_object
from unicorn_async.errors import CacheError, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ENTRY_FILE = "entry.json"
TENSORS_FILE = "tensors.safetensors"
_MAX_ENTRY_BYTES = 16 << 20
_CHECKSUM = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"([0-9a-f]{64})?")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that an entry was made of, as it was then; `sha256` is "" until `unicorn cache verify` hashed it."""

    path: str
    nbytes: int
    mtime_ns: int
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class CachedTensor:
    """A tensor's size without the rest of its last page, and the checksum of that."""

    nbytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What an entry is, and what it was made of.

    `created` is in seconds since 1970. `nbytes` is the size of the file with the tensors, `sha256` is that file's, ""
    until `unicorn cache verify` hashed it. `device` made the weights.
    """

    key: str
    layout_version: int
    model: str
    scheme: str
    lora_digest: str
    device: str
    created: float
    nbytes: int
    tensors: Mapping[str, CachedTensor]
    source_path: str
    sources: tuple[SourceFile, ...]
    sha256: str = ""

    @classmethod
    def read(cls, folder: Path) -> CacheEntry:
        """Read the entry in a folder; the tensors' file is there, and as large as it has to be.

        Raises:
            CacheError: it is damaged.
        """
        try:
            text = _read_regular(folder / ENTRY_FILE)
            entry = cls.parse(text, str(folder / ENTRY_FILE))
            found = (folder / TENSORS_FILE).lstat()
        except OSError as exc:
            raise CacheError(f"{exc.filename or folder}: {exc.strerror or exc}") from exc
        if not stat.S_ISREG(found.st_mode):
            raise CacheError(f"{folder / TENSORS_FILE}: is no file")
        if entry.key != folder.name:
            raise CacheError(f"{folder / ENTRY_FILE}: is of the entry {entry.key[:100]!r}")
        if found.st_size != entry.nbytes:
            raise CacheError(f"{folder / TENSORS_FILE}: expected {entry.nbytes} bytes, got {found.st_size}")
        return entry

    @classmethod
    def parse(cls, text: bytes, source: str) -> CacheEntry:
        """Return the entry that JSON describes; `source` names it in errors.

        Raises:
            CacheError: the text is not what `to_json` makes.
        """
        try:
            fields = _Fields(parse_object(text, source), source)
        except CheckpointError as exc:
            raise CacheError(str(exc)) from exc
        if (version := fields.whole("format")) != FORMAT_VERSION:
            raise CacheError(f"{source}: expected format {FORMAT_VERSION}, got {version}")
        return cls(
            key=fields.get("key", str),
            layout_version=fields.whole("layout_version"),
            model=fields.get("model", str),
            scheme=fields.get("scheme", str),
            lora_digest=fields.get("lora_digest", str),
            device=fields.get("device", str),
            created=fields.number("created"),
            nbytes=fields.whole("nbytes"),
            tensors={name: _tensor(item, source) for name, item in fields.get("tensors", dict).items()},
            source_path=fields.get("source_path", str),
            sources=tuple(_source_file(item, source) for item in fields.get("sources", list)),
            sha256=fields.digits("sha256", _SHA256),
        )

    def to_json(self) -> bytes:
        """Return the text of entry.json."""
        return json.dumps({"format": FORMAT_VERSION, **asdict(self)}, indent=1).encode()

    def with_hashes(self, sha256: str, sources: Mapping[str, str]) -> CacheEntry:
        """Return the entry with the SHA-256 of its file and of its sources, by path, filled in."""
        files = tuple(replace(file, sha256=file.sha256 or sources.get(file.path, "")) for file in self.sources)
        return replace(self, sha256=self.sha256 or sha256, sources=files)


class _Fields:
    """Typed access to a JSON object's members; raises CacheError."""

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self._values = values
        self._source = source

    def get(self, name: str, kind: type[T]) -> T:
        value = self._values.get(name)
        if not isinstance(value, kind):
            raise CacheError(f"{self._source}: {name}: expected {kind.__name__}, got {type(value).__name__}")
        return value

    def whole(self, name: str) -> int:
        value = self.get(name, int)
        if isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise CacheError(f"{self._source}: {name}: expected a whole number, 0 to 2**63 - 1")
        return value

    def number(self, name: str) -> float:
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise CacheError(f"{self._source}: {name}: expected a time in seconds")
        return float(value)

    def digits(self, name: str, pattern: re.Pattern[str]) -> str:
        value = self.get(name, str)
        if not pattern.fullmatch(value):
            raise CacheError(f"{self._source}: {name}: {value[:100]!r} is no hash")
        return value


def _object(item: object, source: str) -> _Fields:
    if not isinstance(item, dict):
        raise CacheError(f"{source}: expected an object, got {type(item).__name__}")
    return _Fields(item, source)


def _tensor(item: object, source: str) -> CachedTensor:
    fields = _object(item, f"{source}: tensors")
    return CachedTensor(fields.whole("nbytes"), fields.digits("checksum", _CHECKSUM))


def _source_file(item: object, source: str) -> SourceFile:
    fields = _object(item, f"{source}: sources")
    path = fields.get("path", str)
    if "\0" in path:
        raise CacheError(f"{source}: sources: {path[:100]!r} is no path")
    return SourceFile(path, fields.whole("nbytes"), fields.whole("mtime_ns"), fields.digits("sha256", _SHA256))


def _read_regular(path: Path) -> bytes:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_ENTRY_BYTES:
        raise CacheError(f"{path}: expected a file of at most {_MAX_ENTRY_BYTES} bytes, it has {found.st_size}")
    return path.read_bytes()
