"""What is measured of a model's products on a device, in which order, and for how long."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.tune.contests import Contest
    from unicorn_async.tune.products import ModelProduct
    from unicorn_async.tune.tuner import FormMeasurement, Measurement, Tuner


@dataclass(slots=True)
class Findings:
    """What was measured, and for how many products there was no time."""

    forms: list[FormMeasurement] = field(default_factory=list)
    products: list[tuple[ModelProduct, Measurement]] = field(default_factory=list)
    num_left: int = 0


def survey(
    tuner: Tuner,
    products: Sequence[ModelProduct],
    contests: Sequence[Contest],
    *,
    seconds: float,
    progress: Callable[[float, ModelProduct], None],
) -> Findings:
    """Measure as many products as the time allows, in their order; raises as `Tuner.measure`.

    The first that reads an input with a contest has that settled, and then all of its products come, in the best form.
    `progress` is told the share that is done, and what is next.
    """
    found = Findings()
    unsettled = {read: contest for contest in contests for read in contest.inputs}
    queue = deque(products)
    end = time.monotonic() + seconds
    while queue and (left := end - time.monotonic()) > 0:
        one = queue[0]
        progress(1.0 - min(1.0, len(queue) / len(products)), one)
        contest = unsettled.get(one.product.input)
        if contest is None:
            queue.popleft()
            measurement = tuner.measure(one.product, most_s=left)
            if measurement is None:
                found.num_left += 1
            else:
                found.products.append((one, measurement))
            continue
        own = contest.ways[contest.rule]
        queue = deque(other for other in queue if other not in own)
        for read in contest.inputs:
            del unsettled[read]
        form = tuner.settle(contest, most_s=left)
        if form is None:
            found.num_left += len(own)
        else:
            found.forms.append(form)
            queue.extendleft(reversed(contest.ways[form.best]))
    found.num_left += len(queue)
    return found
