"""What `--attention auto` chooses, by arithmetic and by times of steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gpu.made_up import DISCRETE, INTEGRATED, SOFTWARE

from tests.memory.test_plans import GEMMA_27B
from tests.npu.builds import write_build
from unicorn_async.config import AttentionKind, EngineConfig
from unicorn_async.errors import ConfigError
from unicorn_async.hybrid.batch_split import LEAST_SPLIT
from unicorn_async.hybrid.cost_model import Corner, StepWork, Way, Weights, corners, way_seconds
from unicorn_async.hybrid.figures import gpu_figures, npu_figures
from unicorn_async.hybrid.step_class import StepClass
from unicorn_async.hybrid.step_times import MAX_ROWS, StepTimes, StepTimesFile
from unicorn_async.hybrid.way_choice import assumed_classes, choose_way
from unicorn_async.npu.geometry import CHIPS, NPU1, NPU2, HeadLayout
from unicorn_async.npu.measured import MeasuredRates
from unicorn_async.npu.pace import FEW_TASKS
from unicorn_async.npu.pace import num_tasks as tasks_of
from unicorn_async.npu.step import prepare_step
from unicorn_async.npu.work import AttentionHeads, SequenceWork
from unicorn_async.resources import resource_dir
from unicorn_async.scheduler.block_pool import NeighbourPool

if TYPE_CHECKING:
    from unicorn_async.hybrid.way_choice import AttentionChoice
    from unicorn_async.npu.geometry import Chip

GPU = replace(INTEGRATED, compute_units=12)
INT4 = Weights(15_600_000_000, 27_000_000_000)
ONE, MANY, PROMPT = StepClass(1, 1, 4096), StepClass(32, 32, 4096), StepClass(1, 512, 4096)
FAST = MeasuredRates("0" * 64, "firmware", "2026-11-25", 400e9, 4e12, 10e-6)  # an NPU that no chip has
SLOW_GPU = Corner(40e9, 1e12, 40e9, 4e12, 127e-6, 1e-6)


def work(step: StepClass, chip: Chip = NPU1, weights: Weights = INT4) -> StepWork:
    return StepWork.of(GEMMA_27B, weights, AttentionHeads(HeadLayout(chip, 128), 32, 16, 64), step)


def choose(times: StepTimes | None = None, chip: Chip = NPU1, rates: MeasuredRates | None = None) -> AttentionChoice:
    assumed = assumed_classes(GEMMA_27B, EngineConfig())
    figures = gpu_figures(GPU, chip), npu_figures(chip, rates)
    return choose_way(lambda step: work(step, chip), assumed, times or StepTimes(), *figures)


def measured(place: AttentionKind, step: StepClass, seconds: float, count: int = 3) -> StepTimes:
    times = StepTimes()
    times.add(place, step, [seconds] * 3, count)
    return times


def test_a_token_of_a_long_conversation_reads_what_its_windows_let_it_see() -> None:
    counted = work(ONE)
    assert counted.kv_bytes == pytest.approx(772e6, rel=0.01)
    assert 2 * counted.attention_multiply_adds == pytest.approx(1.54e9, rel=0.01)
    assert (counted.weight_bytes, counted.can_split) == (INT4.nbytes, False)


@pytest.mark.parametrize(("step", "sequences"), [(ONE, 1), (MANY, 32), (PROMPT, 1)])
def test_tasks_and_runs_are_those_that_steps_are_prepared_with(tmp_path: Path, step: StepClass, sequences: int) -> None:
    build, heads = write_build(tmp_path, NPU1, 128), AttentionHeads(HeadLayout(NPU1, 128), 32, 16, 64)
    queries, num_tasks, num_runs = step.tokens // sequences, 0, 0
    extent, num_blocks = NeighbourPool.EXTENT, 2 * 64 * sequences
    for window, num_layers in ((0, 10), (1024, 52)):
        works = [
            SequenceWork(row * queries, queries, 4096, _in_rows(extent, range(row * 128, row * 128 + 128)))
            for row in range(sequences)
        ]
        made = prepare_step(
            build,
            heads,
            works,
            num_tokens=step.tokens,
            num_blocks=num_blocks,
            window=window,
            soft_cap=0.0,
            items_per_run=1 << 16,
            instruction_bytes=1 << 30,
            tasks_per_run=FEW_TASKS,
            run_s=1e9,
        )
        num_tasks += num_layers * sum(tasks_of(item) for part in made.parts for item in part.items)
        num_runs += num_layers * len(made.parts)
    counted = work(step)
    # The queries of a prompt's chunk see other keys each, and a window's may begin amid a row.
    assert counted.num_tasks == pytest.approx(num_tasks, rel=0.35) and counted.num_tasks <= num_tasks
    assert counted.num_runs == pytest.approx(num_runs, rel=0.35) and counted.num_runs <= num_runs


def _in_rows(extent: int, blocks: range) -> list[int]:
    """Every second row of neighbouring blocks."""
    return [block for block in blocks if block // extent % 2 == 0]


def test_tasks_that_begin_slowly_and_more_runs_lengthen_steps_with_the_npu() -> None:
    counted, fewer = work(MANY), replace(work(MANY), num_runs=62)
    quick, slow = (way_seconds(counted, SLOW_GPU._replace(task_s=task_s)) for task_s in (0.0, 1e-3))
    assert slow[Way.WHOLE] - slow[Way.GPU] > 1e-3 * counted.num_tasks - 1 and slow[Way.GPU] == quick[Way.GPU]
    assert slow[Way.HALVES] > quick[Way.HALVES]
    few = way_seconds(fewer, SLOW_GPU)
    more = way_seconds(counted, SLOW_GPU)
    assert more[Way.WHOLE] - few[Way.WHOLE] == pytest.approx((counted.num_runs - 62) * SLOW_GPU.dispatch_s)


def test_one_prompt_may_be_split_where_a_batch_of_it_is() -> None:
    assert [work(StepClass(1, tokens, 64)).can_split for tokens in (LEAST_SPLIT // 2, LEAST_SPLIT)] == [False, True]


def test_one_sequence_takes_longer_with_the_npu_whatever_of_the_figures_is_right() -> None:
    for chip in CHIPS:
        gpu = gpu_figures(GPU, chip)
        assert gpu is not None
        for corner in corners(gpu, npu_figures(chip, None)):
            ways = way_seconds(work(ONE, chip), corner)
            assert ways[Way.WHOLE] > 1.05 * ways[Way.GPU] and Way.HALVES not in ways


@pytest.mark.parametrize("chip", CHIPS)
def test_the_gpu_is_chosen_by_what_is_known_of_the_chips(chip: Chip) -> None:
    choice = choose(chip=chip)
    assert choice.kind is AttentionKind.GPU
    assert "by estimate, which leaves out the host's copies" in choice.reason
    assert "taken where that is less than 0.95 at all ends of the figures' ranges" in choice.reason
    assert [row.step for row in choice.classes] == [ONE, MANY, PROMPT]
    assert {time.is_measured for row in choice.classes for time in row.times} == {False}


def test_halves_read_the_weights_twice_and_share_a_memory() -> None:
    counted = work(StepClass(2, 2, 64))
    ways = way_seconds(counted, SLOW_GPU)
    assert ways[Way.HALVES] >= 2 * counted.weight_bytes / SLOW_GPU.gpu_bytes_per_s > 1.9 * ways[Way.GPU]


def test_halves_pay_where_the_gpu_computes_and_the_npu_is_fast() -> None:
    ways = way_seconds(work(PROMPT), SLOW_GPU)
    assert ways[Way.HALVES] < 0.99 * min(ways[Way.GPU], ways[Way.WHOLE])
    ways = way_seconds(work(PROMPT), SLOW_GPU._replace(npu_multiply_adds_per_s=1e9))
    assert ways[Way.GPU] < 0.5 * min(ways[Way.HALVES], ways[Way.WHOLE])


def test_an_npu_that_is_measured_to_be_fast_for_all_steps_is_taken_without_times() -> None:
    whole = {row.step: {time.way for time in row.times} for row in choose(rates=FAST).classes}
    assert whole[ONE] == {Way.GPU, Way.WHOLE} and whole[MANY] == {Way.GPU, Way.WHOLE, Way.HALVES}
    attends_alone = replace(INT4, nbytes=1000, elements=1000)
    npu = npu_figures(NPU1, replace(FAST, dispatch_s=1e-9))
    figures = gpu_figures(GPU, NPU1), replace(npu, task_s=replace(npu.task_s, high=npu.task_s.low))
    choice = choose_way(lambda step: work(step, weights=attends_alone), [MANY], StepTimes(), *figures)
    assert choice.kind is AttentionKind.NPU and "by estimate" in choice.reason
    assert [figure.is_measured for figure in choice.figures[2:]] == [True, True, True, False]
    assert "measured here by `unicorn npu validate`" in "\n".join(choice.lines())


def test_times_of_both_ways_decide_and_no_estimate_is_left() -> None:
    times = measured(AttentionKind.GPU, ONE, 0.2).joined(measured(AttentionKind.NPU, ONE, 0.1))
    choice = choose(times)
    assert choice.kind is AttentionKind.NPU and choice.reason.endswith("this machine's 6 steps take 0.5 times as long")
    (row,) = choice.classes
    assert [(time.low_s, time.high_s, time.is_measured) for time in row.times] == [(0.2, 0.2, True), (0.1, 0.1, True)]
    slower = measured(AttentionKind.GPU, ONE, 0.2).joined(measured(AttentionKind.NPU, ONE, 0.196))
    assert choose(slower).kind is AttentionKind.GPU


def test_a_class_counts_as_often_as_its_steps_were_there() -> None:
    def at(num_single: int) -> AttentionKind:
        times = StepTimes()
        for place, one_s, many_s in ((AttentionKind.GPU, 0.2, 0.6), (AttentionKind.NPU, 0.22, 0.3)):
            times.add(place, ONE, [one_s] * 3, num_single)
            times.add(place, MANY, [many_s] * 3, 100)
        return choose(times).kind

    assert (at(100), at(100_000)) == (AttentionKind.NPU, AttentionKind.GPU)


def test_a_measured_time_of_the_gpu_takes_the_place_of_its_estimate() -> None:
    (row,) = choose(measured(AttentionKind.GPU, ONE, 0.3)).classes
    gpu, whole = row.times
    assert (gpu.low_s, gpu.high_s, gpu.is_measured, whole.is_measured) == (0.3, 0.3, True, False)
    assert whole.low_s > 0.3  # all but the attention is what was measured


def test_two_steps_are_no_measurement() -> None:
    times = StepTimes()
    times.add(AttentionKind.NPU, ONE, [1e-9, 1e-9])
    assert choose(times).kind is AttentionKind.GPU


@pytest.mark.parametrize("info", [SOFTWARE, DISCRETE, replace(GPU, compute_units=0), replace(GPU, vendor_id=0x8086)])
def test_of_other_gpus_nothing_is_assumed_but_their_measured_times_count(info: object) -> None:
    figures = gpu_figures(info, NPU1)  # type: ignore[arg-type]
    assert figures is None
    choice = choose_way(work, [ONE], StepTimes(), None, npu_figures(NPU1, None))
    assert choice.kind is AttentionKind.GPU and "of this GPU no rates are known" in choice.reason
    times = measured(AttentionKind.GPU, ONE, 0.2).joined(measured(AttentionKind.NPU, ONE, 0.1))
    assert choose_way(work, [ONE], times, None, npu_figures(NPU1, None)).kind is AttentionKind.NPU


def test_a_large_gpu_of_an_npu2_has_the_wide_memory() -> None:
    large, small = (gpu_figures(replace(GPU, compute_units=count), NPU2) for count in (40, 16))
    assert large is not None and small is not None
    assert large.bytes_per_s.high == 2 * small.bytes_per_s.high


def test_of_experts_a_step_reads_those_that_its_tokens_take() -> None:
    experts = Weights(1000, 500, 80_000, 40_000, 1 / 8)
    assert [work(StepClass(n, n, 64), weights=experts).weight_bytes for n in (1, 4, 16)] == [11_000, 41_000, 81_000]
    assert work(StepClass(4, 4, 64), weights=experts).multiply_adds == 4 * (500 + 5000)


def test_times_are_kept_and_joined(tmp_path: Path) -> None:
    file = StepTimesFile(tmp_path / "times", "model", 1)
    assert file.read().is_empty
    file.add(measured(AttentionKind.GPU, ONE, 0.25, count=10))
    file.add(measured(AttentionKind.NPU, ONE, 0.5, count=5))
    kept = file.read()
    assert (kept.seconds(AttentionKind.GPU, ONE), kept.seconds(AttentionKind.NPU, ONE)) == (0.25, 0.5)
    assert kept.counts() == {ONE: 15}
    assert StepTimesFile(tmp_path / "times", "model", 2).read().is_empty
    assert [path.suffix for path in (tmp_path / "times").iterdir()] == [".json"]


def test_times_are_told_apart_by_place() -> None:
    times = measured(AttentionKind.GPU, ONE, 0.25).joined(measured(AttentionKind.NPU, ONE, 0.5))
    for place, seconds, other in (
        (AttentionKind.GPU, 0.25, AttentionKind.NPU),
        (AttentionKind.NPU, 0.5, AttentionKind.GPU),
    ):
        assert (times.at(place).seconds(place, ONE), times.at(place).seconds(other, ONE)) == (seconds, None)


def test_a_file_has_so_many_classes_and_no_more() -> None:
    times = StepTimes()
    for keys in range(1, MAX_ROWS + 10):
        times.add(AttentionKind.GPU, StepClass(1, 1, keys), [0.1])
    assert len(StepTimes.parse(times.to_json()).counts()) == MAX_ROWS


GOOD = {"attention": "gpu", "sequences": 1, "tokens": 1, "keys": 8, "steps": 1, "last_s": [0.1]}


def test_products_in_bfp16_raise_the_most_that_an_npu_may_compute_and_nothing_else() -> None:
    figures = [npu_figures(NPU2, None, products).all() for products in NPU2.products]
    for bf16, bfp16 in zip(*figures, strict=True):
        computes = bf16.name == "the NPU computes"
        assert (bfp16.low, bfp16.high) == (bf16.low, bf16.high * (4 if computes else 1))


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {**GOOD, "attention": "auto"},
        {**GOOD, "attention": 1},
        {**GOOD, "keys": 0},
        {**GOOD, "keys": True},
        {**GOOD, "steps": -1},
        {**GOOD, "tokens": 1 << 60},
        {**GOOD, "last_s": "0.1"},
        {**GOOD, "last_s": [float("nan")]},
        {**GOOD, "last_s": [-1]},
        {**GOOD, "last_s": [0.1] * 10},
    ],
)
def test_a_row_that_is_none_is_refused(row: object) -> None:
    StepTimes.parse({"format": 1, "rows": [GOOD]})
    with pytest.raises(ConfigError, match="a row is none of steps' times"):
        StepTimes.parse({"format": 1, "rows": [row]})


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"format": 2, "rows": []}', '{"format": 1}'])
def test_a_damaged_file_is_told_and_replaced(tmp_path: Path, text: str) -> None:
    file = StepTimesFile(tmp_path, "model")
    file.path.write_text(text)
    with pytest.raises(ConfigError, match="no times of steps"):
        file.read()
    file.add(measured(AttentionKind.GPU, ONE, 0.25))
    assert file.read().seconds(AttentionKind.GPU, ONE) == 0.25


def test_a_folder_in_which_nothing_can_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("a file")
    with pytest.raises(ConfigError, match="not written"):
        StepTimesFile(tmp_path / "times", "model").add(measured(AttentionKind.GPU, ONE, 0.25))


def test_every_source_of_a_figure_is_in_the_documents_table() -> None:
    page = (Path(str(resource_dir("npu"))).parent / "docs" / "npu.md").read_text()
    for chip in CHIPS:
        gpu = gpu_figures(GPU, chip)
        assert gpu is not None
        for figure in (*gpu.all(), *npu_figures(chip, None).all()):
            urls = [word.strip("(),;:") for word in figure.source.split() if word.startswith("https://")]
            assert all(url in page for url in urls) and (urls or "docs/npu.md" in figure.source)
