from __future__ import annotations

import pytest

from unicorn_async.errors import MissingFeatureError
from unicorn_async.gpu.queue_plan import QueuePlan, plan_queues

GRAPHICS, COMPUTE, TRANSFER, SPARSE, VIDEO = 0x1, 0x2, 0x4, 0x8, 0x20


def test_one_queue_does_everything() -> None:
    assert plan_queues([(GRAPHICS | COMPUTE | TRANSFER, 1, 64)]) == QueuePlan((0, 0), (0, 0))


def test_compute_leaves_the_graphics_queue_alone_and_copies_take_the_dma_engine() -> None:
    families = [
        (GRAPHICS | COMPUTE | TRANSFER | SPARSE, 16, 64),
        (TRANSFER | SPARSE, 2, 64),
        (COMPUTE | TRANSFER | SPARSE, 8, 64),
        (TRANSFER | SPARSE | VIDEO, 1, 32),
    ]
    assert plan_queues(families) == QueuePlan((2, 0), (1, 0))


def test_copies_take_a_second_compute_queue_where_there_is_no_dma_engine() -> None:
    assert plan_queues([(GRAPHICS | COMPUTE | TRANSFER, 1, 64), (COMPUTE | TRANSFER, 4, 64)]) == QueuePlan(
        (1, 0), (1, 1)
    )


def test_copies_take_another_computing_family_at_last() -> None:
    assert plan_queues([(GRAPHICS | COMPUTE | TRANSFER, 1, 64), (COMPUTE | TRANSFER, 1, 64)]) == QueuePlan(
        (1, 0), (0, 0)
    )


def test_a_video_queue_is_no_dma_engine() -> None:
    families = [(COMPUTE | TRANSFER, 1, 64), (TRANSFER | VIDEO, 1, 0)]
    assert plan_queues(families) == QueuePlan((0, 0), (0, 0))


def test_a_device_without_a_compute_queue_is_an_error() -> None:
    with pytest.raises(MissingFeatureError, match="no compute queue among 1 queue families"):
        plan_queues([(GRAPHICS, 1, 64)])
