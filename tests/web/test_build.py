"""The built page is that of the sources, and the page's own tests pass. Only the latter need Node.js."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).resolve().parents[2] / "web"
BUILT = WEB / "built"
SETTINGS = ("build.mjs", "package-lock.json", "package.json", "tsconfig.json")
MAX_FIRST_LOAD = 120_000  # bytes, compressed
VITEST = WEB / "node_modules" / ".bin" / "vitest"


def source_hash() -> str:
    """As web/build.mjs makes it."""
    sources = [
        file.relative_to(WEB).as_posix()
        for file in (WEB / "src").rglob("*")
        if file.is_file() and ".test." not in file.name
    ]
    lines = [
        f"{hashlib.sha256((WEB / path).read_bytes()).hexdigest()}  {path}\n" for path in sorted([*SETTINGS, *sources])
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def test_the_built_page_is_made_of_the_sources_that_are_there() -> None:
    built_from = (BUILT / "sources.sha256").read_text().strip()
    assert built_from == source_hash(), "the page's sources changed: run `cd web && npm ci && npm run build`"


def test_every_file_is_named_by_its_content_and_lies_beside_what_it_is_compressed() -> None:
    for file in BUILT.iterdir():
        if file.suffix in (".gz", ".sha256"):
            continue
        content = file.read_bytes()
        assert gzip.decompress(file.with_name(f"{file.name}.gz").read_bytes()) == content
        assert file.name == "index.html" or file.stem.endswith(f"-{hashlib.sha256(content).hexdigest()[:12]}")


def test_the_first_load_is_small() -> None:
    page = (BUILT / "index.html").read_text()
    names = {"index.html", *re.findall(r'"/([\w.-]+)"', page)}
    names = {name for name in names if not name.endswith((".png", ".webmanifest"))}  # asked for where it is installed
    assert len(names) == 4
    assert sum((BUILT / f"{name}.gz").stat().st_size for name in names) <= MAX_FIRST_LOAD


def test_the_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (WEB / "package-lock.json").read_text()


@pytest.mark.skipif(
    shutil.which("node") is None or not VITEST.exists(),
    reason="the page's unit tests need Node.js and `cd web && npm ci`; the built page is served and tested without",
)
def test_the_pages_unit_tests_pass() -> None:
    done = subprocess.run([str(VITEST), "run"], cwd=WEB, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
