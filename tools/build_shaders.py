#!/usr/bin/env python3
"""Compiles the shaders and writes their manifest.

    build_shaders.py [--glslc PATH] [family ...]    compile these sources (default: all), merge them into the manifest
    build_shaders.py --check                        no compiler needed: fails where a module is not its source's

shaders/variants.toml says which entries a source has. Every entry becomes shaders/spirv/<entry>.spv and a record in
shaders/manifest.json: its sources and their hash, the module's SHA-256, and its interface as read from the SPIR-V.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spirv_reflect import Interface, ReflectionError, reflect

if TYPE_CHECKING:
    from collections.abc import Iterator

SHADERS = Path(__file__).resolve().parent.parent / "shaders"
MAX_PUSH_BYTES = 128  # what Vulkan guarantees
_TARGET = ("--target-env=vulkan1.3", "-Werror")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+(?:"([^"]+)"|([A-Z][A-Z0-9_]*))[ \t]*$', re.MULTILINE)


class BuildError(Exception):
    """A shader, its table or the compiler is not in order; the message says which."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One module to make: a source, the macros it is compiled with and the files behind `#include NAME`."""

    name: str
    family: str
    defines: tuple[tuple[str, str], ...]
    includes: tuple[tuple[str, str], ...]
    requires: tuple[str, ...]


def read_entries(shaders: Path) -> list[Entry]:
    """List the entries of variants.toml in its order; raises BuildError for keys that are not known."""
    tables = tomllib.loads((shaders / "variants.toml").read_text())
    return [entry for family, table in tables.items() for entry in _family_entries(family, table)]


def _family_entries(family: str, table: dict[str, Any]) -> Iterator[Entry]:
    if unknown := set(table) - {"formats", "variants", "requires"}:
        raise BuildError(f"variants.toml [{family}]: unknown keys {sorted(unknown)}")
    for format_name in table.get("formats", [""]):
        for variant, options in table.get("variants", {"": {}}).items():
            if unknown := set(options) - {"defines", "includes", "requires"}:
                raise BuildError(f"variants.toml [{family}.variants] {variant}: unknown keys {sorted(unknown)}")
            includes = dict(options.get("includes", {}))
            if format_name:
                includes["FORMAT"] = f"quant/{format_name}.glsl"
            yield Entry(
                name="_".join(part for part in (family, format_name, variant) if part),
                family=family,
                defines=tuple(sorted((k, str(v)) for k, v in options.get("defines", {}).items())),
                includes=tuple(sorted(includes.items())),
                requires=tuple(sorted({*table.get("requires", []), *options.get("requires", [])})),
            )


def _resolved(text: str, entry: Entry) -> str:
    """The source with `#include NAME` replaced by the file that the entry puts there."""
    files = dict(entry.includes)

    def line(match: re.Match[str]) -> str:
        if match[1]:
            return match[0]
        if match[2] not in files:
            raise BuildError(f"{entry.name}: no file for #include {match[2]}")
        return f'#include "{files[match[2]]}"'

    return _INCLUDE.sub(line, text)


def source_files(shaders: Path, entry: Entry) -> list[str]:
    """All files that go into an entry, relative to `shaders`, the source first."""
    names, pending = [f"{entry.family}.comp"], [f"{entry.family}.comp"]
    while pending:
        path = shaders / pending.pop()
        if not path.is_file():
            raise BuildError(f"{entry.name}: no source {path.name}")
        for match in _INCLUDE.finditer(_resolved(path.read_text(), entry)):
            if not (shaders / match[1]).is_file():
                raise BuildError(f"{path.name}: #include of {match[1]!r}, which is not under {shaders.name}/")
            if match[1] not in names:
                names.append(match[1])
                pending.append(match[1])
    return names[:1] + sorted(names[1:])


def source_hash(shaders: Path, entry: Entry) -> str:
    """SHA-256 over everything that decides the module, except the compiler."""
    digest = hashlib.sha256(json.dumps(asdict(entry), sort_keys=True).encode())
    for name in source_files(shaders, entry):
        digest.update(f"\0{name}\0".encode() + (shaders / name).read_bytes())
    return digest.hexdigest()


def _compile(glslc: str, shaders: Path, entry: Entry, *flags: str) -> bytes:
    text = _resolved((shaders / f"{entry.family}.comp").read_text(), entry)
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "module.spv"
        command = [glslc, "-fshader-stage=comp", *_TARGET, *flags, f"-I{shaders}", "-o", str(output), "-"]
        command[1:1] = [f"-D{name}={value}" for name, value in entry.defines]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{entry.name}:\n" + done.stderr.replace("<stdin>", f"{entry.family}.comp"))
        return output.read_bytes()


def build_entry(glslc: str, shaders: Path, entry: Entry) -> tuple[bytes, dict[str, Any]]:
    """Compile an entry; returns the module and its manifest record."""
    files, sources = source_files(shaders, entry), source_hash(shaders, entry)
    module = _compile(glslc, shaders, entry, "-O")
    try:
        interface = reflect(_compile(glslc, shaders, entry, "-g", "-O0"))
    except ReflectionError as exc:
        raise BuildError(f"{entry.name}: {exc}") from exc
    if interface.push_bytes > MAX_PUSH_BYTES:
        raise BuildError(f"{entry.name}: {interface.push_bytes} bytes of push constants, at most {MAX_PUSH_BYTES}")
    record = _record(entry, module, interface)
    return module, record | {"files": files, "source_hash": sources}


def _record(entry: Entry, module: bytes, interface: Interface) -> dict[str, Any]:
    return {
        "spirv_sha256": hashlib.sha256(module).hexdigest(),
        "push_constants": [asdict(member) for member in interface.push],
        "push_bytes": interface.push_bytes,
        "spec_constants": {c.name: {"id": c.id, "type": c.type, "default": c.default} for c in interface.constants},
        "workgroup": list(interface.workgroup),
        "requires": list(entry.requires),
    }


@contextlib.contextmanager
def _locked(shaders: Path) -> Iterator[None]:
    with (shaders / "variants.toml").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read_manifest(shaders: Path) -> dict[str, Any]:
    path = shaders / "manifest.json"
    manifest: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"entries": {}}
    return manifest


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".part")
    partial.write_bytes(data)
    partial.replace(path)


def build(shaders: Path, glslc: str, families: list[str]) -> int:
    """Compile the named families, or all, and merge them into the manifest; returns the number of entries built."""
    entries = read_entries(shaders)
    if unknown := set(families) - {entry.family for entry in entries}:
        raise BuildError(f"no table in variants.toml for {sorted(unknown)}")
    chosen = [entry for entry in entries if not families or entry.family in families]
    version = subprocess.run([glslc, "--version"], capture_output=True, text=True, check=True).stdout
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        built = list(pool.map(lambda entry: build_entry(glslc, shaders, entry), chosen))
    with _locked(shaders):
        manifest = _read_manifest(shaders)
        (shaders / "spirv").mkdir(exist_ok=True)
        for entry, (module, record) in zip(chosen, built, strict=True):
            _write(shaders / "spirv" / f"{entry.name}.spv", module)
            manifest["entries"][entry.name] = record
        names = {entry.name for entry in read_entries(shaders)}
        manifest["entries"] = {name: record for name, record in manifest["entries"].items() if name in names}
        for path in (shaders / "spirv").glob("*.spv"):
            if path.stem not in names:
                path.unlink()
        manifest["glslc"] = version.splitlines()[0].strip()
        _write(shaders / "manifest.json", (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
    return len(chosen)


def check(shaders: Path) -> list[str]:
    """Compare sources, manifest and modules; returns what is wrong, one line each."""
    recorded = _read_manifest(shaders)["entries"]
    entries = {entry.name: entry for entry in read_entries(shaders)}
    modules = {path.stem: path for path in (shaders / "spirv").glob("*.spv")}
    families = {entry.family for entry in entries.values()}
    faults = [f"{path.name}: no table in variants.toml" for path in shaders.glob("*.comp") if path.stem not in families]
    faults += [f"{name}: in the manifest, but not in variants.toml" for name in recorded.keys() - entries.keys()]
    faults += [f"{name}: a module that variants.toml does not know" for name in modules.keys() - entries.keys()]
    for name, entry in entries.items():
        if name not in recorded or name not in modules:
            faults.append(f"{name}: not built")
        elif recorded[name]["source_hash"] != source_hash(shaders, entry):
            faults.append(f"{name}: built from other sources than these")
        elif recorded[name]["spirv_sha256"] != hashlib.sha256(modules[name].read_bytes()).hexdigest():
            faults.append(f"{name}: the module is not the one that the manifest describes")
    return sorted(faults)


def _find_glslc(wanted: str | None) -> str:
    unpacked = Path.home() / ".cache" / "glslc" / "bin" / "glslc"  # where get_glslc.py puts it
    found = wanted or os.environ.get("GLSLC") or (str(unpacked) if unpacked.exists() else shutil.which("glslc"))
    if not found:
        raise BuildError("no glslc: give --glslc, set GLSLC, or run tools/get_glslc.py")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile the shaders and write their manifest.")
    parser.add_argument("families", nargs="*", help="sources to compile, without .comp; default: all")
    parser.add_argument("--glslc", help="compiler (default: $GLSLC, then get_glslc.py's, then PATH)")
    parser.add_argument("--check", action="store_true", help="compile nothing, fail where a module is stale")
    parser.add_argument("--shaders", type=Path, default=SHADERS, help="folder of the shaders")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            faults = check(options.shaders)
            print("\n".join(faults) or "all modules belong to their sources")
            return 1 if faults else 0
        count = build(options.shaders, _find_glslc(options.glslc), options.families)
    except BuildError as exc:
        print(f"build_shaders: {exc}", file=sys.stderr)
        return 1
    print(f"built {count} entries")
    return 0


if __name__ == "__main__":
    sys.exit(main())
