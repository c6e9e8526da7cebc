"""What is counted and timed of requests while the server runs.

In plain Python: a library would have to be imported before the first request, and takes as long as a tenth of a start.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

from unicorn_async.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from unicorn_async.engine.types import Token

FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
ANSWER_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Histogram:
    """How many values were at most as large as each bound, and all of them together."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)  # those of each interval; the last is above all bounds
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Take a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics:
    """The counters of one server; used in its loop alone."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()  # method, route, status
        self.answers: Counter[str] = Counter()  # by how they ended
        self.embeddings: Counter[str] = Counter()  # requests for them, by how they ended
        self.embedded_tokens = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.websockets = 0  # open now
        self.first_token_s = Histogram(FIRST_TOKEN_S)
        self.between_tokens_s = Histogram(BETWEEN_TOKENS_S)
        self.answer_s = Histogram(ANSWER_S)

    async def timed(self, stream: AsyncGenerator[Token, None], num_prompt: int) -> AsyncGenerator[Token, None]:
        """Yield a stream's tokens and note when they come; closing this closes the stream."""
        clock = time.perf_counter
        began = last = clock()
        num_tokens, outcome, add = 0, "cancelled", self.first_token_s.add
        try:
            async for token in stream:
                now = clock()
                add(now - last)
                add, last = self.between_tokens_s.add, now
                num_tokens += 1
                if token.finish_reason is not None:
                    outcome = token.finish_reason.value
                yield token
        except RequestError:
            outcome = "refused"
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            self.answers[outcome] += 1
            self.prompt_tokens += num_prompt if outcome != "refused" else 0
            self.output_tokens += num_tokens
            self.answer_s.add(time.perf_counter() - began)
            await stream.aclose()

    async def counted(self, stream: AsyncGenerator[Token, None], num_tokens: int) -> AsyncGenerator[Token, None]:
        """Yield what a stream of embeddings has, and note how it ends; closing this closes the stream."""
        outcome = "cancelled"
        try:
            async for token in stream:
                outcome = "done"
                yield token
        except RequestError:
            outcome = "refused"
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            self.embeddings[outcome] += 1
            self.embedded_tokens += num_tokens if outcome == "done" else 0
            await stream.aclose()
