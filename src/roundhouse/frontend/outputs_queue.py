"""`OutputsQueue`: what engines sent and `AsyncLLM` has not taken yet. It knows how many bytes of it are whose."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from roundhouse.protocol.limits import MESSAGE_OVERHEAD_BYTES
from roundhouse.protocol.messages import EngineCoreOutputs


class OutputsQueue:
    """One consumer. What the frontend itself puts has no bytes and no session."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[tuple[int, int, EngineCoreOutputs] | Exception] = asyncio.Queue()
        self._nbytes: defaultdict[int, int] = defaultdict(int)
        self._error: Exception | None = None

    def put(self, outputs: EngineCoreOutputs, session_id: int = 0, nbytes: int = 0) -> int:
        """Returns the bytes of that session that wait, these and the overhead of each message included."""
        nbytes += MESSAGE_OVERHEAD_BYTES if nbytes else 0
        self._items.put_nowait((session_id, nbytes, outputs))
        if not nbytes:
            return 0
        self._nbytes[session_id] += nbytes
        return self._nbytes[session_id]

    def put_error(self, error: Exception) -> None:
        """The consumer meets it when it has taken what came before, and every time after that."""
        self._items.put_nowait(error)

    async def get(self) -> EngineCoreOutputs:
        if self._error is not None:
            raise self._error
        item = await self._items.get()
        if isinstance(item, Exception):
            self._error = item
            raise item
        session_id, nbytes, outputs = item
        if nbytes:
            self._nbytes[session_id] -= nbytes
            if not self._nbytes[session_id]:
                del self._nbytes[session_id]
        return outputs

    def empty(self) -> bool:
        return self._items.empty() and self._error is None
