"""Served model names: GET /v1/models, and the check of a request's `model`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from roundhouse.protocol.errors import ModelNotFound
from roundhouse.server.errors import shorten
from roundhouse.server.state import ServerSettings, ServerState


def served_model(settings: ServerSettings, asked: str | None) -> str:
    """The name to answer with; no name, or an empty one, asks for the first. Raises `ModelNotFound`."""
    return known_model(settings, asked) if asked else settings.served_model_names[0]


def known_model(settings: ServerSettings, name: str) -> str:
    """Raises `ModelNotFound`."""
    if name not in settings.served_model_names:
        raise ModelNotFound(f"The model {shorten(name)!r} does not exist; see GET /v1/models", param="model")
    return name


def model_routes(state: ServerState, settings: ServerSettings) -> APIRouter:
    router = APIRouter(tags=["models"])
    created = int(state.wall())

    def card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "roundhouse",
            "root": settings.served_model_names[0],
            "parent": None,
            "max_model_len": state.llm.max_model_len,
            "permission": [],
        }

    @router.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The models that `model` may name."""
        return {"object": "list", "data": [card(name) for name in settings.served_model_names]}

    @router.get("/v1/models/{model_id:path}")
    async def retrieve_model(model_id: str) -> dict[str, Any]:
        """One of them."""
        return card(known_model(settings, model_id))

    return router
