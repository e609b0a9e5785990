"""Assembles the ASGI application: routes, errors, ids. No logic, nothing global."""

from __future__ import annotations

from fastapi import FastAPI

import roundhouse
from roundhouse.server.body import BodyReader
from roundhouse.server.chat import chat_routes
from roundhouse.server.completions import completion_routes
from roundhouse.server.errors import add_error_handlers
from roundhouse.server.models import model_routes
from roundhouse.server.openapi import add_schemas
from roundhouse.server.request_id import RequestIdMiddleware
from roundhouse.server.schema import ChatCompletionBody, CompletionBody, DetokenizeBody, TokenizeBody
from roundhouse.server.state import ServerSettings, ServerState
from roundhouse.server.status import status_routes
from roundhouse.server.tokenize import tokenize_routes


def build_app(state: ServerState, settings: ServerSettings) -> FastAPI:
    """The application for any ASGI server. Whoever calls owns what is in `state` and closes it after the server."""
    app = FastAPI(
        title="Roundhouse",
        version=roundhouse.__version__,
        description="An OpenAI-compatible server of large language models.",
        redirect_slashes=False,
    )
    bodies = BodyReader(settings)
    for make_body_routes in (chat_routes, completion_routes, tokenize_routes):
        app.include_router(make_body_routes(state, settings, bodies))
    for make_routes in (model_routes, status_routes):
        app.include_router(make_routes(state, settings))
    add_schemas(app, (ChatCompletionBody, CompletionBody, TokenizeBody, DetokenizeBody))
    add_error_handlers(app)
    app.add_middleware(RequestIdMiddleware, new_id=state.new_id)
    return app
