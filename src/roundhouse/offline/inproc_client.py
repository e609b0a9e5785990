"""`InprocClient`: an engine core in the caller's process, where a frontend would have sockets. It steps when asked."""

from __future__ import annotations

from collections.abc import Iterable

from roundhouse.engine.core import EngineCore
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest

_CLIENT = ClientIndex(0)
"""The core's only one."""


class InprocClient:
    """Not thread-safe, as the core is not."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._refused: list[EngineCoreOutput] = []

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queues the request; one that the core refuses is answered by the next `get_output`."""
        refusal = self.core.add_request(request, _CLIENT)
        if refusal is not None:
            self._refused.append(refusal)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Frees their blocks at once. Ids that the core does not hold are ignored."""
        self.core.abort_requests(request_ids, _CLIENT)

    def get_output(self) -> EngineCoreOutputs:
        """What refusals wait, or else what one step brings; empty when there is nothing to do.

        What it raises is the core's end.
        """
        if self._refused:
            refused, self._refused = self._refused, []
            return EngineCoreOutputs(outputs=refused, scheduler_stats=self.core.stats())
        if not self.core.has_requests():
            return EngineCoreOutputs()
        return self.core.step().get(_CLIENT, EngineCoreOutputs())
