"""What requests cost the host a step that wait for room: the scheduler alone, without a device.

Sixteen sequences decode; the others wait behind a beginning that is there, and that nobody has, for blocks.

    python3 benchmarks/waiting.py --found 64000 --waiting 5
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from statistics import median
from typing import TYPE_CHECKING

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.kept_blocks import KeptBlocks
from unicorn_async.scheduler.scheduler import Scheduler
from unicorn_async.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

_BLOCK_SIZE, _DECODES, _CHUNK = 16, 16, 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--found", type=int, default=64_000, help="tokens that are there of what waits")
    parser.add_argument("--waiting", type=int, default=5, help="requests that wait, each another client's")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    for windows, keeps, copies in product(((0,), (0, 1024)), (False, True), (0, 8)):
        times = [
            measured(options.found, waiting, windows, options.steps, keeps=keeps, num_state_copies=copies)
            for waiting in (0, options.waiting)
        ]
        what = f"groups' windows {windows}, kept elsewhere: {keeps}, copies of states: {copies}"
        print(f"{what}: {times[0] * 1e3:.2f} ms, with {options.waiting} that wait {times[1] * 1e3:.2f} ms", flush=True)


def measured(
    found: int, waiting: int, windows: SequenceOf[int], num_steps: int, *, keeps: bool, num_state_copies: int
) -> float:
    """Return the median of the CPU's seconds for a step."""
    num_blocks = 2 * found // _BLOCK_SIZE + 200
    groups = tuple(BlockGroup(window, num_blocks) for window in windows)
    kept = KeptBlocks([1] * (len(groups) + (num_state_copies > 0)), disk_limit=1 << 40) if keeps else None
    scheduler = Scheduler(
        groups=groups,
        block_size=_BLOCK_SIZE,
        max_num_seqs=32,
        max_num_batched_tokens=_CHUNK,
        max_context=1 << 20,
        max_waiting=100,
        max_logit_rows=64,
        eos_token_ids=(),
        in_order=True,
        shares_prefixes=True,
        kept=kept,
        num_state_copies=num_state_copies,
        num_spare_states=0 if num_state_copies else None,
        kept_tokens=32,
    )
    if scheduler.kept_prefixes is not None:
        scheduler.kept_prefixes.is_open = True
    text = tuple(range(found))
    add(scheduler, (*text, 1), "first", 1)
    while scheduler.has_work:
        step(scheduler)
    room = (num_blocks - found // _BLOCK_SIZE - _DECODES) // _DECODES * _BLOCK_SIZE
    for number in range(_DECODES):
        add(scheduler, tuple(range((number + 1) << 20, ((number + 1) << 20) + room - number)), "first", 10 * num_steps)
    for _ in range(_DECODES * (room // _CHUNK + 1) + 3):
        step(scheduler)
    for number in range(waiting):
        own = range((number + 100) << 20, ((number + 100) << 20) + _CHUNK)
        add(scheduler, (*text, *own), f"client {number}", 1)
    step(scheduler)
    times = [step(scheduler) for _ in range(num_steps)]
    assert (scheduler.num_running, scheduler.num_waiting) == (_DECODES, waiting)
    return median(times)


def add(scheduler: Scheduler, prompt: tuple[int, ...], client: str, max_tokens: int) -> None:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    scheduler.add(Sequence("r", prompt, sampling, seed=0, client=client))


def step(scheduler: Scheduler) -> float:
    began = time.process_time()
    batch = scheduler.schedule()
    assert batch is not None
    scheduler.commit(batch, [7] * batch.num_samples, step_s=0.01)
    return time.process_time() - began


if __name__ == "__main__":
    main()
