"""Whose prompts go first in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as SequenceOf

    from unicorn_async.scheduler.sequence import Sequence


class PromptTurns:
    """Clients take turns: whose prompts had no part of a step for longest goes first, with its own as they are."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}  # of clients with something that runs, the number of the latest part
        self._num_turns = 0

    def note(self, client: str) -> None:
        """Take it that a client's prompt has a part of a step."""
        self._num_turns += 1
        self._turns[client] = self._num_turns

    def ordered(self, prompts: SequenceOf[Sequence], running: Iterable[Sequence]) -> list[Sequence]:
        """Return prompts in the order of their clients' turns; clients of whom nothing runs are forgotten."""
        clients = {sequence.client for sequence in running}
        self._turns = {client: turn for client, turn in self._turns.items() if client in clients}
        return sorted(prompts, key=lambda prompt: self._turns.get(prompt.client, 0))

    def is_before(self, client: str, prompts: SequenceOf[Sequence]) -> bool:
        """Whether a client's turn comes before that of all these, which are in the order of theirs."""
        return bool(prompts) and self._turns.get(client, 0) < self._turns.get(prompts[0].client, 0)
