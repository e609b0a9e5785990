"""`EngineCoreClient`: what AsyncLLM needs of the engines, whatever lies between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from roundhouse.protocol.messages import EngineCoreOutputs, EngineCoreRequest, Hello, SchedulerStats


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine as its frontend sees it. `state` is the name of its membership state: admitted, stalled, draining …

    num_inflight: by all its sessions. server_key: generation of the server key that its present session came by, 0
    without keys. num_sessions: over one while sessions by older keys finish what they have.
    """

    identity: str
    engine_index: int
    state: str
    hello: Hello
    load: SchedulerStats
    num_inflight: int
    last_heard_s: float
    server_key: int = 0
    num_sessions: int = 1


class EngineCoreClient(ABC):
    """The engines of one frontend. All methods belong to one event loop."""

    @abstractmethod
    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Gives `request` to an engine, now or when one comes. Raises `DuplicateRequestId`, `NoEngine`,
        `MessageTooLarge`, `ShuttingDown` or `EngineDeadError`; then none has it.
        """

    @abstractmethod
    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Tells the engines that hold them; ids that no engine holds are ignored. Never raises for a lost engine."""

    @abstractmethod
    async def get_output_async(self) -> EngineCoreOutputs:
        """The next message. Requests of a lost engine go on with another one; those that cannot come back as outputs
        that end in ERROR, with code `engine_dead`, `no_engine` or `request_poisoned`.

        Raises what ended the client's own reader: then nothing more will come.
        """

    @abstractmethod
    async def call_utility_async(self, method: str, *args: Any, engine_index: int | None = None) -> list[Any]:
        """Calls `method` on one engine or on all; results in the order of the engine indexes."""

    @abstractmethod
    def engines(self) -> list[EngineView]:
        """The engines known now, in the order of their indexes."""

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """Live requests that no engine has."""

    @abstractmethod
    def drain_engine(self, identity: str) -> bool:
        """Gives that engine nothing new and moves what it has to others; what fits nowhere else ends where it is.

        False, and nothing is done, when it is not here. It is used again when it comes back with a new session.
        """

    @abstractmethod
    async def wait_for_engine(self) -> Hello:
        """Returns when at least one engine is admitted: its Hello."""

    @abstractmethod
    def shutdown(self) -> None:
        """Closes the sockets. Idempotent."""
