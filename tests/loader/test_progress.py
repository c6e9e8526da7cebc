"""What follows from the counts of a load."""

from __future__ import annotations

import pytest

from unicorn_async.loader.progress import LoadProgress


@pytest.mark.parametrize(
    ("loaded", "seconds", "done", "share", "rate", "left"),
    [
        (0, 0.0, False, 0.0, None, None),
        (0, 2.0, False, 0.0, None, None),
        (10, 0.0, False, 0.1, None, None),
        (25, 0.5, False, 0.25, 50.0, 1.5),
        (100, 4.0, False, 1.0, 25.0, 0.0),
        (100, 4.0, True, 1.0, 25.0, 0.0),
    ],
)
def test_share_rate_and_time_left_follow_from_the_counts(
    loaded: int, seconds: float, done: bool, share: float, rate: float | None, left: float | None
) -> None:
    progress = LoadProgress(100, loaded, 4, 1, seconds, done)
    assert (progress.share, progress.bytes_per_s, progress.seconds_left) == (share, rate, left)
