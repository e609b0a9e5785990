"""Model folder and engines → the ASGI app: where the parts of a frontend are put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from roundhouse.frontend.async_llm import AsyncLLM
from roundhouse.frontend.config import FrontendConfig
from roundhouse.frontend.membership import MembershipState
from roundhouse.frontend.mp_client import AsyncMPClient
from roundhouse.frontend.prometheus import PrometheusStatLogger
from roundhouse.model_store import ModelFolder, load_chat_template, load_tokenizer
from roundhouse.server.admin import Admin, AdminView
from roundhouse.server.app import build_app
from roundhouse.server.state import Health, ServerSettings, ServerState, health_of


@asynccontextmanager
async def frontend_app(
    folder: ModelFolder,
    client: AsyncMPClient,
    served_names: Sequence[str],
    *,
    engines_can_come: bool,
    admin: Admin | None = None,
) -> AsyncIterator[ASGIApp]:
    """The app for one model; after the block its requests have ended and `client` is closed.

    engines_can_come: somebody starts engines when there are none, so that a frontend without one is asleep, not down.
    admin: is opened.
    """
    tokenizer = load_tokenizer(folder.path)
    metrics = PrometheusStatLogger(client, model_name=served_names[0])
    llm = AsyncLLM(FrontendConfig(), tokenizer, client, stat_loggers=[metrics])
    metrics.watch_live_requests(lambda: llm.num_live_requests)
    llm.start()

    def health() -> Health:
        num_admitted = sum(view.state == MembershipState.ADMITTED.value for view in llm.engines())
        return health_of(is_errored=llm.errored, num_admitted=num_admitted, engines_can_come=engines_can_come)

    state = ServerState(
        llm=llm,
        tokenizer=tokenizer,
        chat_template=load_chat_template(folder.path),
        health=health,
        registry=metrics.registry,
    )
    if admin is not None:
        admin.open(
            AdminView(
                llm.engines,
                lambda: client.num_waiting,
                client.drain_engine,
                metrics.registry,
                has_failed=lambda: llm.errored,
            )
        )
    try:
        yield build_app(state, ServerSettings(tuple(served_names)))
    finally:
        llm.shutdown()
