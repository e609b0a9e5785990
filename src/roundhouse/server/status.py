"""What operators and probes ask: /health, /ping, /version, /metrics, and a pointer at /."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

import roundhouse
from roundhouse.protocol.errors import NoEngine
from roundhouse.server.exposition import exposition
from roundhouse.server.state import Health, ServerSettings, ServerState


def status_routes(state: ServerState, settings: ServerSettings) -> APIRouter:
    router = APIRouter(tags=["status"])

    @router.head("/health", include_in_schema=False)
    @router.head("/ping", include_in_schema=False)
    @router.get("/health")
    @router.get("/ping", summary="The same, by the name that SageMaker asks for")
    async def health() -> Response:
        """200 with nothing in it while requests can be answered, 503 when they cannot. A frontend whose engines sleep
        says `asleep` with 200: it is whole, and its requests get 503 with Retry-After until an engine is there."""
        match state.health():
            case Health.OK:
                return Response()
            case Health.ASLEEP:
                return Response("asleep", media_type="text/plain")
            case Health.DOWN:
                raise NoEngine("no engine is ready")

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": roundhouse.__version__}

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        """In Prometheus' text format, or OpenMetrics for who accepts it."""
        return exposition(state.registry, request.headers.get("accept", ""))

    @router.get("/", include_in_schema=False)
    async def pointer() -> dict[str, Any]:
        return {
            "server": f"roundhouse {roundhouse.__version__}",
            "models": list(settings.served_model_names),
            "api": "/v1",
            "docs": "/docs",
        }

    return router
