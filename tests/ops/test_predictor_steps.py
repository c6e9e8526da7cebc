"""Where predictions go on: behind the last right proposal's row, then behind what was predicted before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from unicorn_async.ops.predictor_steps import PREDICTOR_STEP, PredictorSteps, predictor_steps
from unicorn_async.ops.sample_rows import SAMPLE_RESULT, SAMPLE_ROW

if TYPE_CHECKING:
    from .arrays import Array, Arrays

NO_SLOT = 0xFFFFFFFF


def results(*tokens: int) -> np.ndarray[Any, Any]:
    found = np.zeros(len(tokens), SAMPLE_RESULT)
    found["token"] = tokens
    return found


def test_a_prediction_goes_on_behind_what_is_right_and_then_behind_itself(arrays: Arrays) -> None:
    # Tokens: a decode with two right proposals and a wrong one, a decode without, one whose first proposal is wrong.
    token_ids = np.array([7, 20, 21, 22, -3, 9, 31, 32], np.int32)
    positions = np.array([40, 41, 42, 43, 3, 15, 16, 17], np.uint32)
    rows = np.arange(8, dtype=np.uint32)
    sampled = arrays.put(results(20, 21, 50, 51, 60, 70, 32, 33))
    predicted = arrays.put(results(*range(100, 108)))
    steps = arrays.put(np.array([(0, 4), (4, 1), (5, 3), (0, 0)], PREDICTOR_STEP))
    tables = np.arange(4 * 6, dtype=np.uint32).reshape(4, 6) + 100
    made: dict[str, Array] = {
        name: arrays.put(np.full(4, 77, np.uint32))
        for name in ("from_rows", "next_ids", "positions", "context_len", "slots")
    }
    sample_rows = arrays.put(np.zeros(4, SAMPLE_ROW))
    places = PredictorSteps(
        steps=steps.address,
        block_table=arrays.put(tables).address,
        sample_rows=sample_rows.address,
        max_blocks=6,
        block_size=8,
        **{name: array.address for name, array in made.items()},
    )
    given = [arrays.put(values).address for values in (token_ids, positions, rows)]

    def run(places: PredictorSteps, predicted: Array, *, is_first: bool) -> None:
        arrays.run(
            lambda recorder: predictor_steps(
                recorder,
                arrays.device.kernels,
                places,
                num_sequences=4,
                predicted=predicted.address,
                token_ids=given[0],
                positions=given[1],
                logit_rows=given[2],
                sampled=sampled.address,
                is_first=is_first,
            )
        )

    run(places, predicted, is_first=True)
    values = {name: array.values.tolist() for name, array in made.items()}
    assert values["from_rows"] == [2, 4, 5, 0]
    assert values["next_ids"] == [102, 104, 105, 0]
    assert values["positions"][:3] == [43, 4, 16]
    assert values["context_len"] == [44, 5, 17, 1]
    assert values["slots"] == [(100 + 5) * 8 + 3, 106 * 8 + 4, 114 * 8, NO_SLOT]
    assert sample_rows.values["position"].tolist() == [45, 6, 18, 0]
    run(places, arrays.put(results(200, 201, 202, 203)), is_first=False)
    values = {name: array.values.tolist() for name, array in made.items()}
    assert values["from_rows"] == [0, 1, 2, 0]
    assert values["next_ids"] == [200, 201, 202, 0]
    assert values["positions"][:3] == [44, 5, 17]
    assert values["slots"][1:] == [106 * 8 + 5, 114 * 8 + 1, NO_SLOT]
    assert sample_rows.values["position"].tolist() == [46, 7, 19, 0]
