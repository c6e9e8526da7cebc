"""What is counted of a run."""

from __future__ import annotations

from unicorn_async.cli.bench_run import Measurement, decoded_together


def test_tokens_count_from_the_first_one_of_the_last_sequence_to_the_last_one_of_the_first_to_end() -> None:
    times = [[1.0, 2.0, 3.0, 4.0], [2.5, 3.5, 4.5, 5.5]]
    assert decoded_together(times) == (3, 1.5)  # 3.0, 3.5 and 4.0, from 2.5 to 4.0
    assert decoded_together([[1.0, 2.0, 4.0]]) == (2, 3.0)


def test_sequences_that_follow_one_another_were_never_together() -> None:
    assert decoded_together([[1.0, 2.0], [2.0, 3.0]]) == (0, 0.0)
    assert decoded_together([[1.0, 2.0], [3.0, 4.0]]) == (0, 0.0)


def test_rates_are_of_the_time_of_the_tokens_and_the_devices_share_of_all_the_time() -> None:
    run = Measurement(30, 1.5, 2.0, 10, 1.0, 0.1, 0.5, 0.2)
    assert (run.tokens_per_s, run.device_busy) == (20.0, 0.5)
