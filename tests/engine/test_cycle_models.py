"""Files whose answers follow a cycle: a draft model, and a model's own layer, are right as often as was asked for."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import make_gguf
import model_shapes

from unicorn_async.engine.files import ModelFiles
from unicorn_async.scheduler import speculation as scheduling

from .answers import answer

if TYPE_CHECKING:
    from unicorn_async.engine.engine import Engine
    from unicorn_async.scheduler.sequence import Sequence

    from .conftest import OpenEngine

VOCAB, FIRST, NUM_TOKENS = 1024, 4, 120
STARTS = (FIRST, 300, 700, VOCAB - 50)
SHARE = 0.7
SIZES: dict[str, Any] = {"layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 256, "vocab": VOCAB}
SHAPES = {
    "llama": replace(model_shapes.SHAPES["llama-8b"], hidden=1024, **SIZES),
    "small": replace(model_shapes.SHAPES["qwen3-0.6b"], hidden=512, **SIZES),
    "dense": replace(
        model_shapes.SHAPES["qwen3.5-27b"],
        hidden=1024,
        **SIZES | {"layers": 4},
        linear=model_shapes.LinearHeads(1, 2, 32),
    ),
    "mixture": replace(
        model_shapes.SHAPES["qwen3.5-35b-a3b"],
        **{"hidden": 1024, **SIZES, "layers": 4, "linear": model_shapes.LinearHeads(1, 2, 32)},
        **{"experts": 4, "experts_used": 2, "expert_ffn": 256, "shared_ffn": 256},
    ),
}


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have one token drafted wherever one can be, whatever that costs."""

    def wished(
        rates: dict[Sequence, float], most: dict[Sequence, int], *_: object, **__: object
    ) -> dict[Sequence, int]:
        return {sequence: min(most[sequence], 1) for sequence in rates}

    monkeypatch.setattr(scheduling, "wished_drafts", wished)


def write(path: Path, name: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> Path:
    monkeypatch.setitem(model_shapes.SHAPES, name, SHAPES[name])
    monkeypatch.setattr(make_gguf, "POOL_BYTES", 1 << 18)
    monkeypatch.setattr(sys, "argv", ["make_gguf.py", f"{name}:Q4_K", str(path), *options])
    assert make_gguf.main() == 0
    return path


def walk(start: int) -> list[int]:
    """Return what the cycle has behind a token."""
    return [FIRST + (start - FIRST + number) % (VOCAB - FIRST) for number in range(1, NUM_TOKENS + 1)]


async def check(engine: Engine) -> float:
    """Check that all answers follow the cycle; returns which part of what was drafted was right."""
    found = await asyncio.gather(*(answer(engine, (2, 900, 333, start), max_tokens=NUM_TOKENS) for start in STARTS))
    assert [one.ids for one in found] == [walk(start) for start in STARTS]
    stats = engine.stats()
    return stats.drafted_tokens_right / stats.drafted_tokens if stats.drafted_tokens > 200 else 0.0


@pytest.mark.whole("files that benchmarks of speculation make")
async def test_a_draft_is_right_about_its_share_of_tokens(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path / "model.gguf", "llama", monkeypatch, "--cycle")
    draft = write(tmp_path / "draft.gguf", "small", monkeypatch, "--cycle", str(SHARE))
    async with open_engine(model) as engine:
        assert await check(engine) == 0.0
    async with open_engine(model, speculation="lookup", draft=draft) as engine:
        await engine.draft_loaded()
        assert await check(engine) == pytest.approx(SHARE, abs=0.06)


@pytest.mark.whole("files that benchmarks of speculation make")
@pytest.mark.parametrize("name", ["dense", "mixture"])
async def test_a_predicting_layer_is_right_about_its_share_of_tokens(
    name: str, open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path / "model.gguf", name, monkeypatch, "--cycle", "--predictor", str(SHARE))
    assert ModelFiles.read(model, predicts=True).config.predicts
    async with open_engine(model, speculation="auto") as engine:
        assert engine.predicts
        assert await check(engine) == pytest.approx(SHARE, abs=0.06)


def test_what_has_no_cycle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, message in {
        ("--predictor", "0.7"): "of models with --cycle alone",
        ("--cycle", "1.2"): "share of tokens: expected 0 to 1, got 1.2",
        ("--cycle", "--predictor", "0.7"): "llama: it has no layer that predicts a token more",
    }.items():
        with pytest.raises(SystemExit):
            write(tmp_path / "none.gguf", "llama", monkeypatch, *options)
        assert message in capsys.readouterr().err
