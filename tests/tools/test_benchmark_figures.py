"""What the benchmarks make of what was measured: numbers worked out by hand."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.packed_files import gptq, write_packed
from tests.engine.predicting_model import write_hybrid
from tests.golden.checkpoints import write_checkpoint
from unicorn_async.cli.bench_limits import Limits
from unicorn_async.config import EngineConfig
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import ConfigError
from unicorn_async.step.kernel_times import KernelTime

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import conversation
import host
import kernels
import make_checkpoint
import model_runs as runs
import model_shapes
import peers
import speed
from step_work import KeysAndValues, Mixture, StepWork


@pytest.mark.parametrize(
    ("tokens", "sizes"),
    [([1], [1]), ([3], [4]), ([5, 8], [8]), ([100], [128]), ([384, 385], [384, 512]), ([600], [512])],
)
def test_times_of_kernels_are_those_of_the_size_that_a_step_is_padded_to(tokens: list[int], sizes: list[int]) -> None:
    times = [KernelTime(size, "kernel", "", 0, 0, 1, 1, 1) for size in (1, 2, 4, 8, 128, 384, 512)]
    found = runs.times_of(times, EngineConfig(max_num_batched_tokens=512), tokens)
    assert [time.tokens for time in found] == sizes


def test_decoding_is_summed_up_over_its_windows() -> None:
    moments = [
        runs.Moment(time_s=1.0, tokens=100, steps=50, device_s=0.5, host_s=0.10),
        runs.Moment(time_s=3.0, tokens=140, steps=70, device_s=1.5, host_s=0.12),
        runs.Moment(time_s=7.0, tokens=180, steps=90, device_s=3.5, host_s=0.16),
    ]
    work = StepWork(
        weight_bytes=1_000,
        mixtures=(Mixture(num_experts=4, num_chosen=1, nbytes=800),),
        layer_weights=1_800,
        head_weights=200,
        attending=tuple(KeysAndValues(window, 4) for window in (0, 0, 8)),
        state_bytes=50,
    )
    found = runs.figures_of(moments, work, streams=2, context=10, tokens=20)
    assert found.tokens_per_s == runs.Spread(15.0, 10.0, 20.0)  # 40 tokens in 2 s, and 40 in 4 s
    assert found.context == 10 + 16 + 20  # those of the prompt, of the warm-up, and half of two windows of 20
    assert found.kv_bytes == 2 * 4 * (46 + 46 + 8)
    assert found.weight_bytes == 1_000 + 350  # of 4 experts two tokens choose 1 + 3/4
    assert found.state_bytes == 2 * 2 * 50  # read and written
    assert found.bytes_per_s == (1_350 + 800 + 200) * 15 / 2  # 7.5 steps a second
    assert "(34% of the bytes are KV, 9% states)" in found.line(Limits(1.0, 1.0, 1.0, 1.0, 0.0, 0.0))
    assert found.flops == 2 * 2 * (1_800 + 200)
    assert found.device_busy == pytest.approx(0.5)  # 3 s of 6
    assert found.host_us_per_step == pytest.approx(1_500)  # 0.06 s in 40 steps


@pytest.mark.parametrize(
    ("steps", "device_s", "busy", "text"), [(31, 1.0, None, "not told"), (32, 1.0, 0.5, "50%"), (32, 2.1, 1.0, "100%")]
)
def test_the_devices_share_is_told_where_steps_at_the_ends_count_little(
    steps: int, device_s: float, busy: float | None, text: str
) -> None:
    moments = [runs.Moment(0.0, 0, 0, 0.0, 0.0), runs.Moment(2.0, steps, steps, device_s, 0.0)]
    work = StepWork(1, (), layer_weights=1, head_weights=1, attending=(KeysAndValues(0, 1),), state_bytes=0)
    found = runs.figures_of(moments, work, streams=1, context=1, tokens=steps)
    assert found.device_busy == busy
    assert f"device busy {text}" in found.line(Limits(1.0, 1.0, 1.0, 1.0, 0.0, 0.0))


def test_a_steps_weights_are_those_of_the_layers_and_the_head_but_not_of_embeddings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = (2 + 1 + 1) * 64 * 64 + 64 * 2 * 64 + 3 * 64 * 96  # query, key and value; output; gate, up and down
    assert layer == 43_008
    norms = 4 * 64 * (2 * 2 + 1)  # in F32
    head = 320 * 64
    monkeypatch.setattr(make_checkpoint, "POOL_BYTES", 1 << 16)
    for name, tied in (("tied", True), ("untied", False)):
        shape = model_shapes.Shape("LlamaForCausalLM", "llama", 64, 2, 2, 1, 64, 96, 320, tied)
        monkeypatch.setitem(model_shapes.SHAPES, name, shape)
        monkeypatch.setattr(sys, "argv", ["make_checkpoint.py", name, str(tmp_path / name), "--dtype", "F16"])
        assert make_checkpoint.main() == 0
        found = StepWork.of(ModelFiles.read(tmp_path / name), EngineConfig())
        assert found.weight_bytes == 2 * (2 * layer + head) + norms
        assert (found.layer_weights, found.head_weights) == (2 * layer, head)
        assert found.attending == (KeysAndValues(0, 2 * 64 * 2),) * 2  # a key and a value of one head of 64 halves
        assert (found.mixtures, found.state_bytes) == ((), 0)


def made(path: Path, monkeypatch: pytest.MonkeyPatch, name: str, **sizes: Any) -> ModelFiles:
    """Read a checkpoint of such a shape, in F16 and of other sizes."""
    monkeypatch.setattr(make_checkpoint, "POOL_BYTES", 1 << 16)
    monkeypatch.setitem(model_shapes.SHAPES, "tiny", replace(model_shapes.SHAPES[name], vocab=320, **sizes))
    monkeypatch.setattr(sys, "argv", ["make_checkpoint.py", "tiny", str(path), "--dtype", "F16"])
    assert make_checkpoint.main() == 0
    return ModelFiles.read(path)


def test_of_a_mixture_a_step_reads_the_experts_that_its_tokens_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"hidden": 64, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 64, "ffn": 64}
    files = made(tmp_path, monkeypatch, "qwen3-30b-a3b", **sizes, experts=8, experts_used=2, expert_ffn=96)
    found = StepWork.of(files, EngineConfig())
    expert, attention = 3 * 64 * 96, (2 + 1 + 1) * 64 * 64 + 64 * 2 * 64
    others = 4 * (64 * (2 * 2 + 1) + 2 * 2 * 64 + 2 * 8 * 64)  # norms, those of heads, and routers, in F32
    assert found.mixtures == (Mixture(8, 2, 2 * 2 * 8 * expert),)  # of both layers
    assert found.weight_bytes == 2 * (2 * attention + 320 * 64) + others
    assert found.layer_weights == 2 * (attention + 2 * expert)
    assert found.weight_bytes_of(1) == found.weight_bytes + 2 * 2 * 2 * expert
    assert found.weight_bytes_of(2) == found.weight_bytes + 2 * 2 * 8 * expert * (1 - (3 / 4) ** 2)
    assert sum(dest.nbytes for dest in files.plan.destinations) - 2 * 320 * 64 == found.weight_bytes_of(10_000)


def test_a_model_without_attention_has_states_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden": 128, "layers": 2, "heads": 2, "kv_heads": 2, "head_dim": 64, "ffn": 256}
    found = StepWork.of(made(tmp_path, monkeypatch, "rwkv7-2.9b", **sizes), EngineConfig())
    assert (found.attending, found.kv_bytes(100), found.mixtures) == ((), 0, ())
    assert found.state_bytes == 2 * 4 * (2 * 64 * 64 + 2 * 128)  # of each layer matrices of heads, and two rows
    assert found.moved_state_bytes == 2 * found.state_bytes


def test_layers_that_do_not_attend_count_as_states_beside_those_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = {"hidden": 128, "layers": 4, "heads": 2, "kv_heads": 1, "head_dim": 64, "ffn": 128}
    files = made(tmp_path, monkeypatch, "qwen3.5-27b", **sizes, linear=model_shapes.LinearHeads(1, 2, 32))
    found = StepWork.of(files, EngineConfig())
    kept = [layer.fixed.nbytes for layer in files.config.layers if layer.fixed is not None]
    assert found.attending == (KeysAndValues(0, 2 * 64 * 2),)
    assert (len(kept), found.state_bytes) == (3, sum(kept))
    assert found.step_bytes(3, 10) == found.weight_bytes + 3 * (10 * 256 + 2 * sum(kept))


@pytest.mark.parametrize("name", ["gpt_oss", "gemma4_moe", "lfm2_moe"])
def test_all_experts_with_their_biases_and_all_other_weights_are_what_is_loaded(name: str, tmp_path: Path) -> None:
    files = ModelFiles.read(write_checkpoint(name, tmp_path))
    found = StepWork.of(files, EngineConfig())
    sizes = {dest.name: dest.nbytes for dest in files.plan.destinations}
    experts = sum(size for dest, size in sizes.items() if ".experts_gate_up" in dest or ".experts_down" in dest)
    assert sum(mixture.nbytes for mixture in found.mixtures) == experts > 0
    embeddings = 0 if files.config.head.table == "embed" else sizes["embed"]
    assert found.weight_bytes == sum(sizes.values()) - experts - embeddings


@pytest.mark.parametrize(("order", "kept"), [(True, ()), (False, ("v_proj",))], ids=["order", "types"])
def test_weights_of_several_types_and_orders_of_columns_are_counted(
    tmp_path: Path, order: bool, kept: tuple[str, ...]
) -> None:
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": order}
    packed, _ = write_packed("llama", tmp_path, quantization, gptq(4, 32, act_order=order), kept=kept)
    files = ModelFiles.read(packed)
    sizes = {dest.name: dest.nbytes for dest in files.plan.destinations}
    assert not {"layers.0.qkv_order", "layers.0.qkv.0"}.isdisjoint(sizes)
    assert StepWork.of(files, EngineConfig()).weight_bytes == sum(sizes.values()) - sizes["embed"]


def test_layers_may_read_keys_and_values_of_different_sizes(tmp_path: Path) -> None:
    found = StepWork.of(ModelFiles.read(write_checkpoint("gemma4_small", tmp_path)), EngineConfig())
    assert {(layer.window, layer.token_bytes) for layer in found.attending} == {(32, 128), (0, 256)}
    assert len(found.attending) == 6  # three of them attend to keys and values of others


def test_a_layer_that_predicts_a_token_more_is_no_part_of_a_step(tmp_path: Path) -> None:
    model = write_hybrid(tmp_path / "model", is_right=False)
    with_it, without = (ModelFiles.read(model, predicts=predicts) for predicts in (True, False))
    assert len(with_it.plan.destinations) > len(without.plan.destinations)
    assert StepWork.of(with_it, EngineConfig()) == StepWork.of(without, EngineConfig())


def test_gaps_of_the_device_are_from_the_end_of_a_step_to_the_begin_of_the_next() -> None:
    watch = host.Watch(start_s=1.0, stop_s=1.003)
    watch.steps = [(0.0, 0.001, 1), (0.0015, 0.001, 2), (0.0026, 0.0014, 3)]  # begin and length
    watch.cpu_ns.update(schedule=300_000, submit=600_000)
    watch.calls.update(write=3, submit=6)
    first = runs.Moment(time_s=0.0, tokens=0, steps=10, device_s=0.0, host_s=0.5)
    last = runs.Moment(time_s=0.006, tokens=0, steps=13, device_s=0.0, host_s=0.5009)
    found = host.host_run(watch, 8, first, last)
    assert watch.gaps_us() == pytest.approx([500.0, 100.0])
    assert (found.gap_us, found.gap_p99_us) == (pytest.approx(300.0), pytest.approx(500.0))
    assert found.gap_share == pytest.approx(0.6 / 4.0)  # of the time from the first begin to the last end
    assert (found.steps, found.step_us, found.host_us) == (3, pytest.approx(2_000.0), pytest.approx(300.0))
    assert found.loop_cpu_us == pytest.approx(1_000.0)
    assert (found.parts_us["schedule"], found.parts_us["submit"]) == (100.0, 200.0)
    assert found.submissions == 2.0


def test_one_step_has_no_gap_and_is_refused() -> None:
    watch = host.Watch(steps=[(0.0, 0.001, 1)])
    moments = runs.Moment(0.0, 0, 1, 0.0, 0.0), runs.Moment(0.1, 1, 2, 0.0, 0.0)
    with pytest.raises(ConfigError, match="1 streams: 1 steps were seen, 2 are needed"):
        host.host_run(watch, 1, *moments)


def test_a_prompts_gaps_are_those_that_end_after_it_came() -> None:
    during, usual = speed.gaps([[1.0, 2.0, 5.0], [1.5, 4.0, 4.5]], start=2.0)
    assert sorted(during) == [0.5, 2.5, 3.0]
    assert usual == [1.0]


def test_a_ratio_is_ours_over_theirs_in_the_same_round() -> None:
    ours = [peers.Rates(rate, {1: rate / 10}, "") for rate in (200.0, 300.0, 800.0)]
    theirs = [peers.Rates(rate, {1: 10.0}, "") for rate in (100.0, 200.0, 400.0)]
    options = argparse.Namespace(prompt=512, streams=[1], context=256)
    _, prompt, decode = peers.table(options, ours, theirs)
    assert " ".join(prompt.split()) == "prompt of 512 300 (200 to 800) 200 (100 to 400) 2.00 (1.50 to 2.00)"
    assert decode.split()[-4:] == ["3.00", "(2.00", "to", "8.00)"]


def test_a_dispatch_takes_its_share_of_a_round_of_them() -> None:
    assert kernels.Floor.of(16, [4_000.0, 5_000.0, 9_000.0], repeats=5) == kernels.Floor(16, 1.0)


def test_what_a_read_takes_beyond_its_bytes_is_by_the_rate_of_the_largest_size() -> None:
    sizes = ((16, 2.0), (1_000_000, 4.0), (2_000_000, 6.0))  # 500,000 bytes a microsecond, and 2 above
    floors = [kernels.Floor(*size) for size in sizes]
    first, second, third = kernels.floor_lines(floors)
    assert first.endswith("   2.00 µs above") and third.endswith("   2.00 µs above")
    assert second.split() == ["1.00", "MB", "4.00", "µs", "250.0", "GB/s", "2.00", "µs", "above"]


def test_nothing_is_derived_from_a_largest_size_that_took_no_longer() -> None:
    *rows, last = kernels.floor_lines([kernels.Floor(100_000, 5.0), kernels.Floor(200_000, 4.9)])
    assert not any("above" in row for row in rows)
    assert "nothing can be said about a rate" in last


@pytest.mark.parametrize(
    ("asked", "max_position", "lengths", "context"),
    [
        ({}, 131_072, (2000, 200, 300, 4000), 12_016),
        ({}, 2048, (338, 33, 50, 2000), 2048),
        ({"system": 100, "answer": 10}, 2048, (100, 86, 10, 2000), 2048),
        ({"common": 300}, 512, (82, 8, 12, 300), 498),
        ({"system": 4000}, 2048, (4000, 1, 1, 2000), 4056),  # more than there is, and refused with these figures
    ],
)
def test_a_conversation_has_the_lengths_that_a_model_has_positions_for(
    asked: dict[str, int], max_position: int, lengths: tuple[int, ...], context: int
) -> None:
    options = argparse.Namespace(turns=20, **(dict.fromkeys(conversation.LENGTHS) | asked))
    conversation.fit(options, max_position)
    assert tuple(getattr(options, name) for name in conversation.LENGTHS) == lengths
    assert options.context == context
