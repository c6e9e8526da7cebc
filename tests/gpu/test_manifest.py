"""Why compiled shaders can't be read, without a device."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from unicorn_async.errors import ConfigError
from unicorn_async.gpu.manifest import Manifest, ManifestEntry, PushBlock, manifest_digest

ENTRY = ManifestEntry("rms_norm", "", PushBlock.of([], 0), 0, {}, (1, 1, 1), ())


def refusals(folder: Path) -> list[str]:
    """What is said of each file that a folder of shaders has."""
    told = []
    for read in (Manifest.read, manifest_digest, lambda folder: Manifest(folder, {}).spirv(ENTRY)):
        with pytest.raises(ConfigError) as caught:
            read(folder)
        told.append(str(caught.value))
    return told


def test_what_is_absent_is_lacking_in_the_installation(tmp_path: Path) -> None:
    for told in refusals(tmp_path):
        assert told.endswith(": No such file or directory; the installation lacks compiled shaders"), told


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_what_is_there_and_cannot_be_read_has_its_own_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(path: Path, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    for name in ("read_bytes", "read_text"):
        monkeypatch.setattr(Path, name, fail)
    for told in refusals(tmp_path):
        assert told.endswith(f": {os.strerror(code)}"), told
