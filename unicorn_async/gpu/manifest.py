"""The shader manifest: what each compiled shader needs, and its interface as reflected from the SPIR-V."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ConstantValue: TypeAlias = "int | float | bool"

MAX_PUSH_BYTES = 128
_FORMATS = {"u64": "Q", "i64": "q", "u32": "I", "i32": "i", "f32": "f", "bool": "I"}


@dataclass(frozen=True, slots=True)
class PushBlock:
    """The members of a push-constant block in the order of their offsets, and how to pack them."""

    names: tuple[str, ...]
    packer: struct.Struct

    @classmethod
    def of(cls, members: list[dict[str, object]], nbytes: int) -> PushBlock:
        """Build from the manifest's list of {name, type, offset}; `nbytes` is the block's size."""
        code, position, names = "<", 0, []
        for member in sorted(members, key=lambda m: int(str(m["offset"]))):
            offset, letter = int(str(member["offset"])), _FORMATS[str(member["type"])]
            code += f"{offset - position}x{letter}"
            position = offset + struct.calcsize("<" + letter)
            names.append(str(member["name"]))
        if position > nbytes:
            raise ValueError(f"push constants end at {position}, push_bytes is {nbytes}")
        return cls(tuple(names), struct.Struct(code + f"{nbytes - position}x"))

    def pack(self, name: str, fields: Mapping[str, int | float]) -> bytes:
        """Return the block's bytes; `name` is the shader's, for messages.

        Raises:
            ConfigError: a field is missing, unknown or out of its type's range.
        """
        try:
            values = [fields[member] for member in self.names]
            if len(fields) == len(values):
                return self.packer.pack(*values)
        except (KeyError, struct.error) as exc:
            if isinstance(exc, struct.error):
                raise ConfigError(f"{name}: {dict(fields)}: {exc}") from exc
        missing = sorted(set(self.names) - set(fields))
        unknown = sorted(set(fields) - set(self.names))
        raise ConfigError(f"{name}: push constants missing {missing}, unknown {unknown}; it has {list(self.names)}")

    def unpack(self, block: bytes) -> dict[str, int | float]:
        """Return the members of a block that `pack` made."""
        return dict(zip(self.names, self.packer.unpack(block), strict=True))


@dataclass(frozen=True, slots=True)
class SpecConstant:
    """One specialisation constant; `type` is "u32", "i32", "f32" or "bool"."""

    id: int
    type: str
    default: ConstantValue

    def pack(self, value: ConstantValue) -> bytes:
        """Return the constant's four bytes."""
        return struct.pack("<" + _FORMATS[self.type], float(value) if self.type == "f32" else int(value))


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One compiled shader. A size in `workgroup` is a number or the name of a specialisation constant."""

    name: str
    spirv_sha256: str
    push: PushBlock
    push_bytes: int
    constants: Mapping[str, SpecConstant]
    workgroup: tuple[int | str, int | str, int | str]
    requires: tuple[str, ...]

    def constant_values(self, given: Mapping[str, ConstantValue]) -> dict[str, ConstantValue]:
        """Return the value of every constant, given or default.

        Raises:
            ConfigError: a name that the shader does not have.
        """
        if unknown := sorted(set(given) - set(self.constants)):
            raise ConfigError(f"{self.name}: unknown constants {unknown}; it has {sorted(self.constants)}")
        return {name: given.get(name, constant.default) for name, constant in self.constants.items()}

    def workgroup_size(self, values: Mapping[str, ConstantValue]) -> tuple[int, int, int]:
        """Return the workgroup's size where the constants have these values."""
        x, y, z = (size if isinstance(size, int) else int(values[size]) for size in self.workgroup)
        return x, y, z


class Manifest:
    """The shaders of a folder: `manifest.json`, and `spirv/<entry>.spv` beside it."""

    def __init__(self, folder: Path, entries: Mapping[str, ManifestEntry]) -> None:
        self._folder = folder
        self.entries = entries

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the folder's manifest.

        Raises:
            ConfigError: it is absent or damaged, or can't be read.
        """
        path = folder / "manifest.json"
        try:
            records = json.loads(path.read_text())["entries"]
            return cls(folder, {name: _entry(name, record) for name, record in records.items()})
        except OSError as exc:
            raise _unread(path, exc) from exc
        except (KeyError, TypeError, ValueError, AttributeError, struct.error) as exc:
            raise ConfigError(f"{path}: damaged: {exc!r}") from exc

    def spirv(self, entry: ManifestEntry) -> bytes:
        """Read an entry's module.

        Raises:
            ConfigError: it is absent, can't be read, or is not the one that the manifest describes.
        """
        path = self._folder / "spirv" / f"{entry.name}.spv"
        try:
            module = path.read_bytes()
        except OSError as exc:
            raise _unread(path, exc) from exc
        found = hashlib.sha256(module).hexdigest()
        if found != entry.spirv_sha256:
            raise ConfigError(f"{path}: SHA-256 {found}, the manifest says {entry.spirv_sha256}")
        return module


def manifest_digest(folder: Path) -> str:
    """Return what tells all compiled shaders of a folder from those of another version.

    Raises:
        ConfigError: there is no manifest, or it can't be read.
    """
    path = folder / "manifest.json"
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as exc:
        raise _unread(path, exc) from exc


def _unread(path: Path, exc: OSError) -> ConfigError:
    lack = "; the installation lacks compiled shaders" if isinstance(exc, FileNotFoundError) else ""
    return ConfigError(f"{path}: {exc.strerror or exc}{lack}")


def _entry(name: str, record: dict[str, object]) -> ManifestEntry:
    push, constants, sizes, requires = (
        record[key] for key in ("push_constants", "spec_constants", "workgroup", "requires")
    )
    push_bytes = int(str(record["push_bytes"]))
    if not isinstance(push, list) or not isinstance(constants, dict) or not isinstance(sizes, list):
        raise TypeError(f"{name}: push_constants, spec_constants or workgroup is of the wrong type")
    if not isinstance(requires, list) or push_bytes > MAX_PUSH_BYTES:
        raise TypeError(f"{name}: requires {requires!r}, push_bytes {push_bytes}")
    x, y, z = sizes
    return ManifestEntry(
        name=name,
        spirv_sha256=str(record["spirv_sha256"]),
        push=PushBlock.of(push, push_bytes),
        push_bytes=push_bytes,
        constants={key: SpecConstant(c["id"], c["type"], c["default"]) for key, c in constants.items()},
        workgroup=(x, y, z),
        requires=tuple(requires),
    )
