"""Which kernels layers with a recurrence take, on a device that is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.golden.checkpoints import write_checkpoint
from tests.ops.test_linear_rules import GPU
from unicorn_async.config import EngineConfig
from unicorn_async.engine.files import ModelFiles
from unicorn_async.memory.plan import attention_shape
from unicorn_async.ops.runs import SHORTEST_CHUNKED
from unicorn_async.step.dry_run import DryRun

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "chunk", "chunks"),
    [
        ("rwkv7", "time_mix_chunk", "time_mix_chunks"),
        ("qwen3_5", "delta_chunk", "delta_chunks"),
        ("granite_hybrid", "ssm_chunk", "ssm_chunks"),
    ],
)
def test_prompts_go_in_chunks_where_runs_may_be_long_enough(tmp_path: Path, name: str, chunk: str, chunks: str) -> None:
    files = ModelFiles.read(str(write_checkpoint(name, tmp_path, "float16")))
    run = DryRun(GPU, files.config, attention_shape(files.config, EngineConfig()), files.plan)
    for num_tokens, is_chunked in ((1, False), (SHORTEST_CHUNKED - 1, False), (SHORTEST_CHUNKED, True)):
        names = {dispatch.request.name for dispatch in run.unique_layers(num_tokens)}
        assert names.issuperset({chunk, chunks}) is is_chunked, num_tokens
