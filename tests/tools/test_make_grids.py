"""The codebooks that kernels have are those of the PyPI package gguf."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

import make_grids


@pytest.mark.parametrize("name", make_grids.SOURCES)
def test_a_codebook_s_file_is_what_the_tool_makes(name: str) -> None:
    assert (make_grids.GRIDS / f"{name}.glsl").read_text() == make_grids.glsl(name)


def test_there_is_no_other_codebook() -> None:
    assert {path.stem for path in make_grids.GRIDS.iterdir()} == set(make_grids.SOURCES)
