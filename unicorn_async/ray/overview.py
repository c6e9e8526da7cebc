"""`/health`, `/ready` and `/metrics` of a gateway: what its replicas say, each by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from unicorn_async.server.guard import guarded, json_response, told
from unicorn_async.server.health import package_version
from unicorn_async.server.keys import Right
from unicorn_async.server.metrics_text import CONTENT_TYPE, Exposition, add_process, add_requests
from unicorn_async.server.protocol.encoding import encode_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

    from unicorn_async.ray.census import Census
    from unicorn_async.server.access import Access
    from unicorn_async.server.metrics import Metrics


class OverviewEndpoints:
    """The routes of one gateway, which has a name among others."""

    def __init__(self, census: Census, access: Access, metrics: Metrics, name: str) -> None:
        self._census = census
        self._access = access
        self._metrics = metrics
        self._name = name

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/health", told(self._health), methods=["GET"]),
            Route("/ready", told(self._ready), methods=["GET"]),
            Route("/metrics", guarded(self._access, self._count, Right.METRICS), methods=["GET"]),
        ]

    async def _health(self, request: Request) -> Response:
        """Say how the best replica is, and of all of them whether they are well; 503 if none is. It needs no key."""
        self._access.check_host(request.headers)
        reports, state = await self._census.reports(), self._census.state
        body: dict[str, object] = {"status": state.status.value, "version": package_version(), "can_switch": False}
        if reports:
            body |= reports[0].health
        body["replicas"] = [
            {"replica": one.replica, "status": one.health["status"], "error": one.health["error"]} for one in reports
        ]
        return json_response(encode_object(body), status=200 if any(one.is_well for one in reports) else 503)

    async def _ready(self, request: Request) -> Response:
        """Say with 200 or 503 whether a replica takes requests now. It needs no key."""
        self._access.check_host(request.headers)
        reports, state = await self._census.reports(), self._census.state
        ready = any(one.is_ready for one in reports)
        body = encode_object({"ready": ready, "status": state.status.value})
        return json_response(body, status=200 if ready else 503)

    async def _count(self, request: Request) -> Response:
        reports = await self._census.reports()
        own = Exposition()
        add_requests(own, self._metrics)
        own.add("unicorn_replicas", "gauge", "Replicas that say how they are.", len(reports))
        add_process(own)
        texts = [("gateway", self._name, own.text()), *(("replica", one.replica, one.metrics) for one in reports)]
        return Response(joined(texts), headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})


def joined(texts: Iterable[tuple[str, str, str]]) -> str:
    """Return several texts in Prometheus' format as one; the samples of each get its label and the label's value."""
    families: dict[str, list[str]] = {}
    for label, value, text in texts:
        samples: list[str] = []
        for line in text.splitlines():
            if line.startswith("#"):
                name = line.split(" ", 3)[2]
                samples = families.setdefault(name, [])
                if line not in samples:
                    samples.append(line)
            else:
                samples.append(_labelled(line, f'{label}="{value}"'))
    return "".join(f"{line}\n" for samples in families.values() for line in samples)


def _labelled(sample: str, label: str) -> str:
    name, bracket, rest = sample.partition("{")
    if bracket:
        return f"{name}{{{label},{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{label}}} {value}"
