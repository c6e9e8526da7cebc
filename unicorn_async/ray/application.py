"""The application: one deployment, whose replicas are whole servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from unicorn_async.ray.replica import Replica

if TYPE_CHECKING:
    from unicorn_async.ray.arguments import Arguments

ROUTER = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"


def application(arguments: Arguments) -> serve.Application:
    """Return the application.

    A replica is chosen by consistent hashing over a request's `x-session-id`; without one requests are spread evenly.
    """
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name="engine",
        ray_actor_options={"num_gpus": arguments.num_gpus, "num_cpus": arguments.num_cpus},
        max_ongoing_requests=arguments.max_ongoing,
        autoscaling_config=AutoscalingConfig(
            min_replicas=arguments.min_replicas,
            max_replicas=arguments.max_replicas,
            target_ongoing_requests=arguments.target_ongoing,
        ),
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        health_check_period_s=5,
    )
    return deployment.bind(arguments)
