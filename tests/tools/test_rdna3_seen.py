"""What llama.cpp was seen to reach on RDNA3 is one figure for all that goes by it, and files have llama.cpp's mixes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

from unicorn_async.hybrid.figures import SEEN_BYTES, SEEN_MULTIPLY_ADDS
from unicorn_async.weights.rules import WeightKind

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import rdna3
from rdna3_estimate import MEMORY_SHARES
from rdna3_llama import LANES, VARIANTS
from rdna3_models import TYPES, Model, made_checkpoint, made_spec

SCRIPT = Path(rdna3.__file__).with_name("rdna3_seen.py")
needs_radv = pytest.mark.skipif(not Path(rdna3.ICD).is_file(), reason="no RADV here (Debian: mesa-vulkan-drivers)")


def radv(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), *arguments]
    environ = os.environ | {"VK_DRIVER_FILES": rdna3.ICD}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environ)


def file_bytes(shape: str, kind: str) -> tuple[int, int]:
    """Bytes of a file's tensors, and those of them that each token reads."""
    wanted = made_spec(shape).wanted_tensors()
    found = made_checkpoint(wanted, kind).tensors
    total = sum(source.nbytes for source in found.values())
    is_tied = "lm_head.weight" not in found
    return total, total - (0 if is_tied else found["model.embed_tokens.weight"].nbytes)


def test_a_token_of_the_model_that_was_seen_reads_what_the_figures_say() -> None:
    total, read = file_bytes("qwen2.5-7b", "Q4_K_M")
    assert total == pytest.approx(4.68e9, rel=0.002)  # as such a file is on the hub
    assert read == pytest.approx(SEEN_BYTES, rel=0.001)
    matrices = [want.shape for want in made_spec("qwen2.5-7b").wanted_tensors() if want.kind is WeightKind.MATRIX]
    assert sum(map(prod, matrices)) == pytest.approx(SEEN_MULTIPLY_ADDS, rel=0.001)


@pytest.mark.parametrize(
    ("shape", "kind", "gb"),
    [("llama-8b", "Q4_K_M", 4.92), ("qwen2.5-3b", "Q4_K_M", 1.93), ("qwen2.5-14b", "Q3_K_M", 7.34)],
)
def test_mixes_have_the_size_of_released_files(shape: str, kind: str, gb: float) -> None:
    assert file_bytes(shape, kind)[0] / 1e9 == pytest.approx(gb, rel=0.005)


def test_q4_k_m_has_more_bits_in_half_of_the_layers() -> None:
    types = {dest.name: dest.dtype.value for dest in Model.find("qwen2.5-7b:Q4_K_M").plan.destinations}
    more = [layer for layer in range(28) if types[f"layers.{layer}.down"] == "Q6_K"]
    assert more == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
    assert [types.get(f"layers.{layer}.qkv.2") == "Q6_K" for layer in range(28)] == [
        layer in more for layer in range(28)
    ]
    assert (types["embed"], types["head"], types["layers.0.o"]) == ("Q4_K", "Q6_K", "Q4_K")
    tied = {dest.name: dest.dtype.value for dest in Model.find("qwen2.5-3b:Q4_K_M").plan.destinations}
    assert tied["embed"] == "Q6_K"


def test_shapes_come_in_every_type_that_files_have() -> None:
    missing = {"BF16", "Q4_1", "Q5_0", "Q5_1", "Q5_K", "IQ4_NL"} - set(TYPES)
    assert not missing
    for kind in ("BF16", "Q4_1", "Q5_K", "IQ4_NL"):
        types = {dest.name: dest.dtype.value for dest in Model.find(f"qwen3-0.6b:{kind}").plan.destinations}
        assert types["layers.0.down"] == kind


@needs_radv
def test_what_was_seen_of_decoding_lies_between_the_shares_that_are_likely(tmp_path: Path) -> None:
    file = tmp_path / "seen.json"
    done = radv(SCRIPT, "--models", "qwen2.5-7b:Q4_K_M", "llama-8b:Q4_K_M", "--json", str(file))
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["figures"]
    decoded = [figure for figure in figures if not figure["seen"]["is_prompt"]]
    assert len(figures) == 6 and len(decoded) == 3
    least, most = MEMORY_SHARES
    assert all(least <= figure["share"] <= most and figure["ratio"] < figure["share"] for figure in decoded)
    assert "| 780M | qwen2.5-7b:Q4_K_M | 1 stream |" in done.stdout
    assert "one stream, dense models, integrated chips: shares of 0." in done.stdout


@needs_radv
def test_a_folder_that_cannot_be_made_for_code_is_named_in_one_line() -> None:
    done = radv(Path(rdna3.__file__), "qwen3-0.6b:Q4_K", "--chips", "780M", "--tokens", "1", "--code", "/proc/none")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "/proc/none: " in done.stderr


def test_tiles_of_llama_cpp_are_covered_by_their_subgroups() -> None:
    for variant in VARIANTS:
        subgroups = variant.rows // variant.own_rows * (variant.tokens // variant.own_tokens)
        assert subgroups * LANES == variant.threads, variant


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm here (Debian: binutils)")
def test_a_library_that_names_no_shaders_is_said_to_name_none() -> None:
    done = radv(SCRIPT.with_name("rdna3_llama.py"), sys.executable)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "names no shaders" in done.stderr
