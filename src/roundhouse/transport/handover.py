"""`Handover`: which key an engine opens its next session with a frontend by, and when one session follows another.

Keys change while sessions live. A session by a key that is not the wanted one stays until the frontend has admitted
another by the wanted one; then it is superseded, and the frontend ends it when it has nothing left. The wanted
credential is the newest server key with the engine's present key. While an address has no session, the generations take
turns: a frontend may not listen by the newest yet, or no longer by the older.

A session by a server key that is not the engine's any more stays for nothing: who is at its other end may be who stole
that key. One by a client key of the engine's own from before stays until it is superseded: that key lets nobody pose as
a frontend, and whether it is still good is for the frontend to say.

Pure: `now` is given. `dialer` decides when an address without a session is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roundhouse.protocol.identity import ClientIndex
from roundhouse.transport.address import FrontendAddress, TcpAddress
from roundhouse.transport.backoff import Backoff
from roundhouse.transport.keys import Credential, EngineKeys

FIRST_S = 1.0
LONGEST_S = 10.0


@dataclass(slots=True)
class _Opened:
    address: FrontendAddress
    credential: Credential | None
    is_handover: bool
    is_admitted: bool = False
    is_superseded: bool = False


@dataclass(slots=True)
class _Retry:
    backoff: Backoff
    due: float


class Handover:
    """keys: None on a mesh without. `random`: uniform in [0, 1)."""

    def __init__(self, keys: EngineKeys | None, random: Callable[[], float]) -> None:
        self._random = random
        self._credentials: Sequence[Credential] = [] if keys is None else keys.credentials()
        self._sessions: dict[ClientIndex, _Opened] = {}
        self._turns: dict[FrontendAddress, int] = {}
        self._retries: dict[FrontendAddress, _Retry] = {}

    def set_keys(self, keys: EngineKeys) -> list[ClientIndex]:
        """Sessions to close now: whoever has the server key that they were opened by is no longer believed."""
        self._credentials = keys.credentials()
        self._turns.clear()
        self._retries.clear()
        return [number for number, session in self._sessions.items() if not _is_believed(session.credential, keys)]

    def first(self, address: FrontendAddress) -> Credential | None:
        """For a session with an address that has none. None: it needs no key, or there are none."""
        if not self._credentials or not isinstance(address, TcpAddress):
            return None
        turn = self._turns.get(address, 0)
        self._turns[address] = turn + 1
        return self._credentials[turn % len(self._credentials)]

    def due(self, now: float) -> list[tuple[FrontendAddress, Credential]]:
        """Addresses to open a second session with now, and by what."""
        return [(address, wanted) for address, wanted, due in self._pending() if due <= now]

    def next_due(self) -> float | None:
        return min((due for _, _, due in self._pending()), default=None)

    def opened(
        self, client_index: ClientIndex, address: FrontendAddress, credential: Credential | None, *, is_handover: bool
    ) -> None:
        self._sessions[client_index] = _Opened(address, credential, is_handover)

    def admitted(self, client_index: ClientIndex) -> None:
        """Whatever session its address had before is superseded."""
        session = self._sessions[client_index]
        session.is_admitted, session.is_handover = True, False
        self._turns.pop(session.address, None)
        self._retries.pop(session.address, None)
        for number, other in self._sessions.items():
            if number != client_index and other.address == session.address:
                other.is_superseded = True

    def closed(self, client_index: ClientIndex, now: float) -> bool:
        """Whether its address has no session now, so that the dialer is to try it again."""
        session = self._sessions.pop(client_index)
        if session.is_superseded:
            return False
        if session.is_handover:
            retry = self._retries.get(session.address)
            if retry is None:
                backoff = Backoff(self._random, first_s=FIRST_S, longest_s=LONGEST_S)
                retry = self._retries[session.address] = _Retry(backoff, now)
            retry.due = now + retry.backoff.next_s()
            return self._current(session.address) is None
        return not any(other.address == session.address and other.is_handover for other in self._sessions.values())

    def _current(self, address: FrontendAddress) -> _Opened | None:
        sessions = self._sessions.values()
        return next((one for one in sessions if one.address == address and not one.is_superseded), None)

    def _pending(self) -> list[tuple[FrontendAddress, Credential, float]]:
        if not self._credentials:
            return []
        wanted = self._credentials[0]
        busy = {session.address for session in self._sessions.values() if session.is_handover}
        found: list[tuple[FrontendAddress, Credential, float]] = []
        for session in self._sessions.values():
            is_settled = session.credential is None or session.credential == wanted
            if session.is_admitted and not session.is_superseded and not is_settled and session.address not in busy:
                retry = self._retries.get(session.address)
                found.append((session.address, wanted, 0.0 if retry is None else retry.due))
        return found


def _is_believed(credential: Credential | None, keys: EngineKeys) -> bool:
    return credential is None or keys.servers.get(credential.generation) == credential.server_public
