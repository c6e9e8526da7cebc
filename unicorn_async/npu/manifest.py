"""A build of the kernels: its files, and the manifest that says for what and with what they were built.

XRT gives no dependable error for kernels of another chip, so the manifest is what tells. It is read as hostile.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import reprlib
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unicorn_async.errors import NpuBuildError
from unicorn_async.npu.dialect_check import dialect_problem
from unicorn_async.npu.geometry import HEAD_DIMS, chip_named
from unicorn_async.npu.schedule import Team
from unicorn_async.npu.sources import own_source_hash
from unicorn_async.npu.transaction import Dialect
from unicorn_async.resources import npu_page

if TYPE_CHECKING:
    from unicorn_async.npu.geometry import Chip
    from unicorn_async.npu.precision import Products

FORMAT = 4
MAX_MANIFEST_BYTES = 1 << 20
MAX_XCLBIN_BYTES = 64 << 20
_SHA256 = re.compile("[0-9a-f]{64}")
_HINT = "run `unicorn npu build`, which says what it needs"


def notice() -> str:
    """Return what has to be said wherever these kernels are built or run."""
    return (
        f"No NPU has run these kernels yet, as far as this project knows: {npu_page()} says what is shown and what is"
        " not."
    )


def tried() -> str:
    """Return what is said in place of it where an NPU answered well."""
    return (
        f"This NPU gave the known answers: {npu_page()} says how to report it, because this project knows of none that"
        " did."
    )


@dataclass(frozen=True, slots=True)
class Build:
    """One build, for a chip and a head_dim, with one kind of products.

    `toolchain` says the versions of mlir-aie and of its compiler.
    """

    chip: Chip
    head_dim: int
    products: Products
    xclbin: Path
    sha256: str
    source_sha256: str
    toolchain: dict[str, str]
    dialect: Dialect
    teams: tuple[Team, ...]

    def check_file(self) -> None:
        """Raise NpuBuildError if the xclbin is not the one that was built."""
        try:
            status = self.xclbin.stat()
            if not stat.S_ISREG(status.st_mode):
                raise NpuBuildError(f"{self.xclbin}: expected a file; {_HINT}")
            if status.st_size > MAX_XCLBIN_BYTES:
                raise NpuBuildError(f"{self.xclbin}: {status.st_size:,} bytes; expected {MAX_XCLBIN_BYTES:,} at most")
            found = hashlib.sha256(self.xclbin.read_bytes()).hexdigest()
        except OSError as exc:
            raise NpuBuildError(f"{self.xclbin}: {exc.strerror}; {_HINT}") from exc
        if found != self.sha256:
            raise NpuBuildError(f"{self.xclbin}: expected SHA-256 {self.sha256}, got {found}; {_HINT}")

    def check_sources(self) -> None:
        """Raise NpuBuildError if it was built of other sources than those that are here, where there are any."""
        expected = own_source_hash()
        if expected is not None and self.source_sha256 != expected:
            raise NpuBuildError(
                f"{self.xclbin}: stale: built of the sources {self.source_sha256}, those of this unicorn_async are"
                f" {expected}; {_HINT} with --chip {self.chip.name} --head-dim {self.head_dim}"
            )


def build_dir() -> Path:
    """Return where builds lie: UNICORN_NPU_BUILD, or unicorn/npu in the user's data directory."""
    chosen = os.environ.get("UNICORN_NPU_BUILD")
    if chosen:
        return Path(chosen)
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():  # invalid, says its specification, and to be ignored
        data = Path.home() / ".local" / "share"
    return data / "unicorn" / "npu"


def build_name(chip: Chip, head_dim: int) -> str:
    """Return a build's file name without its suffix."""
    return f"attention_{chip.name}_d{head_dim}"


def find_build(folder: Path, chip: Chip, head_dim: int) -> Build:
    """Return the build for a chip and a head_dim, its file checked.

    Raises:
        NpuBuildError: there is none, it is for something else, of other sources than those here, or damaged.
    """
    path = folder / f"{build_name(chip, head_dim)}.json"
    try:
        is_there = path.is_file()
    except OSError as exc:  # a folder that may not be entered, or a name that no file can have
        raise NpuBuildError(f"{path}: {exc.strerror}") from exc
    if not is_there:
        if os.path.lexists(path.with_suffix(".xclbin")):
            raise NpuBuildError(f"{path}: expected the manifest of {path.stem}.xclbin; {_HINT}")
        others = sorted(other.stem for other in folder.glob("attention_*.json")) if folder.is_dir() else []
        found = f"only {', '.join(others)}" if others else "no build at all"
        raise NpuBuildError(
            f"no kernels for {chip.name} and head_dim {head_dim}: found {found} in {folder};"
            f" {_HINT} with --chip {chip.name} --head-dim {head_dim}"
        )
    build = read_manifest(path)
    if build.chip is not chip or build.head_dim != head_dim:
        raise NpuBuildError(
            f"{path}: expected a build for {chip.name} and head_dim {head_dim}, got one for {build.chip.name} and"
            f" {build.head_dim}; {_HINT}"
        )
    build.check_sources()
    build.check_file()
    return build


def find_built(folder: Path, chip: Chip) -> tuple[int, ...]:
    """Return the head_dims of which there is anything for a chip, sound or not; none where nobody may look."""
    stems = ((head_dim, folder / build_name(chip, head_dim)) for head_dim in HEAD_DIMS)
    return tuple(
        head_dim
        for head_dim, stem in stems
        if any(os.path.lexists(stem.with_suffix(suffix)) for suffix in (".json", ".xclbin"))
    )


def read_manifest(path: Path) -> Build:
    """Read one manifest.

    Raises:
        NpuBuildError: it can't be read, or says something that no build says.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
        if len(text) > MAX_MANIFEST_BYTES:
            raise NpuBuildError(f"{path}: expected {MAX_MANIFEST_BYTES:,} bytes at most")
        fields = json.loads(text)
        return _parse(path, fields)
    except OSError as exc:
        raise NpuBuildError(f"{path}: {exc.strerror}") from exc
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise NpuBuildError(f"{path}: no manifest of a build: {exc!r}; {_HINT}") from exc


def _parse(path: Path, fields: Any) -> Build:
    if _number(fields["format"]) != FORMAT:
        raise NpuBuildError(f"{path}: expected format {FORMAT}, got {fields['format']!r}; {_HINT}")
    chip, head_dim = chip_named(str(fields["chip"])), _number(fields["head_dim"])
    if chip is None or head_dim not in HEAD_DIMS:
        raise NpuBuildError(f"{path}: unknown chip {fields['chip']!r} or head_dim {fields['head_dim']!r}")
    if _number(fields["columns"]) != chip.columns:
        raise NpuBuildError(f"{path}: columns: {chip.name} has {chip.columns}, got {fields['columns']!r}; {_HINT}")
    products = next((kind for kind in chip.products if kind.value == fields["products"]), None)
    if products is None:
        expected = ", ".join(kind.value for kind in chip.products)
        raise NpuBuildError(f"{path}: products: expected {expected}, got {reprlib.repr(fields['products'])}; {_HINT}")
    name = f"{build_name(chip, head_dim)}.xclbin"
    if fields["xclbin"] != name:
        raise NpuBuildError(f"{path}: xclbin: expected {name}, got {reprlib.repr(fields['xclbin'])}")
    stream = fields["instructions"]
    header, descriptor = _words(stream["header"], 2), _words(stream["descriptor"], 6)
    preamble = tuple(_words(words, 7) for words in stream["preamble"])
    teams = tuple(Team(*(_number(number) for number in team)) for team in fields["teams"])
    _check_teams(path, chip, teams)
    dialect = Dialect((header[0], header[1]), descriptor, preamble)
    if problem := dialect_problem(dialect, chip, teams):
        raise NpuBuildError(f"{path}: instructions: {problem}; {_HINT}")
    return Build(
        chip=chip,
        head_dim=head_dim,
        products=products,
        xclbin=path.with_name(name),
        sha256=_sha256(fields["sha256"]),
        source_sha256=_sha256(fields["source_sha256"]),
        toolchain=_toolchain(fields["toolchain"]),
        dialect=dialect,
        teams=teams,
    )


def _check_teams(path: Path, chip: Chip, teams: tuple[Team, ...]) -> None:
    in_range = all(
        0 <= team.column < chip.columns and team.input_channel in (0, 1) and team.output_channel in (0, 1)
        for team in teams
    )
    sources, sinks = {team.source for team in teams}, {team.sink for team in teams}
    if len(teams) != chip.num_teams or not in_range or len(sources) != len(teams) or len(sinks) != len(teams):
        raise NpuBuildError(
            f"{path}: teams: expected {chip.num_teams} of them in {chip.columns} columns, with channels of their own,"
            f" got {teams}"
        )


def _number(value: Any) -> int:
    if type(value) is not int:  # a bool is an int, too
        raise ValueError(f"expected a whole number, got {reprlib.repr(value)}")
    return value


def _word(value: Any) -> int:
    if not 0 <= _number(value) < 1 << 32:
        raise ValueError(f"expected a 32-bit word, got {value!r}")
    return _number(value)


def _words(value: Any, count: int) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"expected {count} words, got {reprlib.repr(value)}")
    return tuple(_word(word) for word in value)


def _sha256(value: Any) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"expected a SHA-256, got {reprlib.repr(value)}")
    return value


def _toolchain(value: Any) -> dict[str, str]:
    """Versions by the tools' names; mlir-aie's is always one of them."""
    if not isinstance(value, dict) or "mlir-aie" not in value:
        raise ValueError(f"expected the toolchain's versions with mlir-aie's, got {reprlib.repr(value)}")
    for key, text in value.items():
        if not isinstance(text, str) or not key.isprintable() or not text.isprintable() or len(key + text) > 500:
            raise ValueError(f"expected a version of {reprlib.repr(key)}, got {reprlib.repr(text)}")
    return value


def manifest_json(build: Build) -> str:
    """Return the text of a build's manifest."""
    fields = {
        "format": FORMAT,
        "chip": build.chip.name,
        "columns": build.chip.columns,
        "head_dim": build.head_dim,
        "products": build.products.value,
        "xclbin": build.xclbin.name,
        "sha256": build.sha256,
        "source_sha256": build.source_sha256,
        "toolchain": build.toolchain,
        "instructions": asdict(build.dialect),
        "teams": [[team.column, team.input_channel, team.output_channel] for team in build.teams],
    }
    return json.dumps(fields, indent=2) + "\n"
