"""Ray Serve's consistent hashing, for sessions that may name a replica as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from unicorn_async.ray.affinity import wanted_replica

if TYPE_CHECKING:
    from ray.serve.request_router import PendingRequest, RunningReplica


class Router(ConsistentHashRouter):  # type: ignore[misc]  # Ray has no types
    """A beginning's hash has its replica, and the ring's next ones while that is full; a name has that one alone."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas to try, one after the other; where the named one is gone, any answers that."""
        name = None if pending_request is None else wanted_replica(pending_request.metadata.session_id)
        named = [replica for replica in candidate_replicas if replica.replica_id.unique_id == name]
        if pending_request is None or not named:
            return await super().choose_replicas(candidate_replicas, pending_request)  # type: ignore[no-any-return]
        pending_request.routing_context.should_backoff = True
        return [named]
