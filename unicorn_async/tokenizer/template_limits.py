"""What a chat template, a stranger's program, may take."""

from __future__ import annotations

MAX_SECONDS = 5.0  # of the processor, for a conversation
SHORT_SECONDS = 0.2  # for one that stands in a row with others; who needs more gets another turn, with all of its time
PATIENCE = 4  # as long by the clock may so many seconds of the processor take
MAX_BYTES = 1 << 30  # of a process's addresses
