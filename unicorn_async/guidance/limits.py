"""What a grammar, a stranger's program, may take."""

from __future__ import annotations

from unicorn_async.client_turns import TurnBounds

SHORT_SECONDS = 0.25  # of the processor, to compile; who needs more gets another turn, with all of its time
LONG_SECONDS = 5.0
PATIENCE = 6  # as long by the clock may so many seconds of the processor take
MAX_BYTES = 1 << 30  # of addresses, beyond those of the vocabulary
PREPARE_S = 60.0  # by the clock, for a large vocabulary on a slow machine
ANSWER_S = 10.0  # by the clock; after once to twice as long a process that does not answer is given up
TURNS = TurnBounds(at_a_time=2, max_of_client=64, max_waiting=256, wait_s=30.0)  # to compile
