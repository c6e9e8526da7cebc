"""Files with many types of blocks: what each layer's matrices mean, and which kernels are there when steps ask."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.checkpoint.gguf.mixed_family import MIXED_FAMILIES, write_mixed
from tests.checkpoint.gguf.mixed_file import MATRICES, STACKS, TABLES, VOCAB, write_mix
from tests.ops.test_linear_rules import GPU
from unicorn_async.config import EngineConfig
from unicorn_async.engine.files import ModelFiles
from unicorn_async.gpu.kernel import KernelLibrary
from unicorn_async.memory.plan import attention_shape
from unicorn_async.step.dry_run import DryRun
from unicorn_async.tensor import QuantFormat

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.engine.conftest import OpenEngine
    from unicorn_async.gpu.kernel import Kernel, KernelRequest


FEW_KINDS = ("Q8_0", "Q3_K", "IQ2_XS", "IQ3_S", "Q2_K")  # cheap to make
SMALL = {"skip_tokenizer": True, "max_context": 64, "max_num_seqs": 1, "max_num_batched_tokens": 16}  # few kernels


def layouts(types: Iterable[str]) -> set[str]:
    return {QuantFormat(kind).layout.name for kind in types if kind != "F32"}


@pytest.mark.parametrize("name", [name for name in MIXED_FAMILIES if name not in ("olmoe", "qwen2_moe")])
def test_a_family_s_file_of_many_types_in_parts_is_read_and_each_has_a_kernel(name: str, tmp_path: Path) -> None:
    """`tools/check_mixed_files.py` compares what they compute."""
    files = ModelFiles.read(write_mixed(tmp_path / "mixed", name, FEW_KINDS))
    types = {tensor.dtype for tensor in files.checkpoint.tensors.values()} & set(FEW_KINDS)
    assert len(types) >= 4
    run = DryRun(GPU, files.config, attention_shape(files.config, EngineConfig()), files.plan)
    names = [dispatch.request.name for dispatch in run.unique_layers(1)]
    for layout in layouts(types - {"IQ3_S"}):  # which may be that of embeddings alone
        assert any(name.endswith(f"_{layout}") for name in names), layout


async def test_a_mix_of_types_has_the_logits_of_its_values_and_compiles_nothing_in_a_step(
    tmp_path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = np.random.default_rng(1).integers(0, VOCAB, 5).tolist()
    async with open_engine(write_mix(tmp_path / "dense.gguf", dense=True), **SMALL) as engine:
        expected = await engine.logits(prompt)
    prepared: set[tuple[Any, ...]] = set()
    asked: set[tuple[Any, ...]] = set()
    prepare, get = KernelLibrary.prepare, KernelLibrary.get

    def note_prepared(self: KernelLibrary, requests: Iterable[KernelRequest]) -> list[Kernel]:
        wanted = list(requests)
        prepared.update((item.name, *sorted(item.constants.items())) for item in wanted)
        return prepare(self, wanted)

    def note_asked(self: KernelLibrary, name: str, **options: Any) -> Kernel:
        asked.add((name, *sorted((options.get("constants") or {}).items())))
        return get(self, name, **options)

    monkeypatch.setattr(KernelLibrary, "prepare", note_prepared)
    monkeypatch.setattr(KernelLibrary, "get", note_asked)
    async with open_engine(write_mix(tmp_path / "mix.gguf"), **SMALL) as engine:
        found = await engine.logits(prompt)
        await engine.loaded()
    errors = np.abs(found - expected).max(axis=1) / expected.std()
    assert np.median(errors) <= 0.1 and errors.max() <= 0.5, errors  # inputs of products are rounded to int8
    names = {name for name, *_ in asked}
    assert {f"linear_quant_{name}" for name in layouts(MATRICES.values())} <= {
        re.sub("(vec|held|many|coopmat|fragments)_", "", name) for name in names
    }
    assert {f"expert_quant_{name}" for name in layouts(STACKS.values())} <= {
        re.sub("(vec|sum|coopmat)_", "", name) for name in names
    }
    assert "linear_vec_f32" in names
    assert f"embed_quant_{QuantFormat(TABLES['token_embd']).layout.name}" in names
    assert {key for key in asked if key[0] != "matrix_fragments"} <= prepared
