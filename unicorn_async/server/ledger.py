"""How much of one thing each client holds, bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.server.options import ServerOptions


class Ledger:
    """Counts one thing for each client, by name; who holds nothing is not in it. Used in one event loop alone."""

    def __init__(self, limit: int, *, what: str, code: str, total: int | None = None, status: int = 429) -> None:
        """A client holds `limit` at most, all of them `total`; `what`, `code` and `status` are for who is refused more.

        `status` is 413 where what a client holds is one message alone, so that waiting would not help.
        """
        self._limit = limit
        self._total = total
        self._all_held = 0
        self._what = what
        self._code = code
        self._status = status
        self._held: dict[str, int] = {}

    @property
    def held(self) -> Mapping[str, int]:
        """What each client holds now."""
        return self._held

    def claim(self, client: str, amount: int = 1, *, limit: int | None = None) -> Lease:
        """Take an amount; `limit` is this client's own.

        Raises:
            ApiError: 429, or the ledger's status, it would be more than the client may hold; 503, than all may.
        """
        lease = Lease(self, client, limit)
        lease.add(amount)
        return lease

    def claim_each(self, client: str, number: int, *, limit: int | None = None) -> list[Lease]:
        """Take so many of one each, or none; raises as `claim`."""
        self.claim(client, number, limit=limit).release()
        return [self.claim(client, limit=limit) for _ in range(number)]

    def _add(self, client: str, amount: int, limit: int | None) -> None:
        limit, held = self._limit if limit is None else limit, self._held.get(client, 0)
        if amount > 0 and held + amount > limit:
            message = f"{self._what}: {client} has {held} of at most {limit}, and asks for {amount} more"
            raise ApiError(message, status=self._status, code=self._code)
        if amount > 0 and self._total is not None and self._all_held + amount > self._total:
            message = (
                f"{self._what}: there are {self._all_held} of at most {self._total}, and {amount} more are asked for"
            )
            raise ApiError(message, status=503, code=self._code)
        self._all_held += amount
        if held + amount:
            self._held[client] = held + amount
        else:
            self._held.pop(client, None)


def input_ledger(options: ServerOptions) -> Ledger:
    """Return a ledger for what clients' requests take."""
    return Ledger(
        options.max_client_input_bytes,
        what="bytes of requests under way",
        code="too_much_input",
        total=options.max_all_input_bytes,
    )


class Lease:
    """What one request holds."""

    def __init__(self, ledger: Ledger, client: str, limit: int | None) -> None:
        self._ledger = ledger
        self._client = client
        self._limit = limit
        self._amount = 0
        self.is_handed_over = False  # somebody else gives it back than who claimed it

    def add(self, amount: int) -> None:
        """Take more; raises as `Ledger.claim` does, and then holds what it held."""
        self._ledger._add(self._client, amount, self._limit)
        self._amount += amount

    def release(self) -> None:
        """Give all of it back; a second call does nothing."""
        amount, self._amount = self._amount, 0
        self._ledger._add(self._client, -amount, None)
