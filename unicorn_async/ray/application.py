"""The application: gateways in front, and replicas of the engine that answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from unicorn_async.ray.ingress import Ingress
from unicorn_async.ray.replica import Replica

if TYPE_CHECKING:
    from unicorn_async.ray.arguments import Arguments

ROUTER = "unicorn_async.ray.router:Router"
_OVERVIEWS = 64  # requests for health and metrics, which come beside all others


def application(arguments: Arguments) -> serve.Application:
    """Return the application: what a gateway does not refuse goes to a replica by its beginning, or by name."""
    engines = serve.deployment(
        Replica,
        name="engine",
        ray_actor_options={"num_gpus": arguments.num_gpus, "num_cpus": arguments.num_cpus},
        max_ongoing_requests=arguments.max_ongoing,
        max_queued_requests=arguments.max_waiting,
        autoscaling_config=AutoscalingConfig(
            min_replicas=arguments.min_replicas,
            max_replicas=arguments.max_replicas,
            target_ongoing_requests=arguments.target_ongoing,
        ),
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        health_check_period_s=5,
    )
    gateways = serve.deployment(
        serve.ingress()(Ingress),
        name="gateway",
        num_replicas=arguments.gateways,
        ray_actor_options={"num_cpus": arguments.gateway_cpus},
        max_ongoing_requests=arguments.options.max_connections + _OVERVIEWS,
        health_check_period_s=5,
    )
    return gateways.bind(arguments, engines.bind(arguments))
