"""A gateway as Ray Serve runs it: its proxy passes requests and websockets to the application here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray import serve

from unicorn_async.ray.gateway import Gateway
from unicorn_async.ray.handle import HandleEngines

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle
    from starlette.applications import Starlette

    from unicorn_async.ray.arguments import Arguments


class Ingress:
    """What Ray Serve makes the gateways' deployment of."""

    def __init__(self, arguments: Arguments, engines: DeploymentHandle[Any]) -> None:
        name = serve.get_replica_context().replica_id.unique_id
        chars = arguments.beginning_chars
        self._gateway = Gateway(HandleEngines(engines), arguments.options, name, beginning_chars=chars)

    def __serve_build_asgi_app__(self) -> Starlette:
        return self._gateway.app()
