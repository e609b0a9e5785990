"""Does to a cluster what the plan says, and makes it whole again afterwards."""

from __future__ import annotations

import signal
import threading
from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

import httpx

from tests.chaos.load import Door
from tests.chaos.mounted_keys import MountedKeys
from tests.chaos.plan import CHANGES_KEYS, ENDS_THE_PROCESS, Event, Kind
from tests.chaos.proxied_cluster import ProxiedCluster
from tests.support.cluster import EngineProcess
from tests.support.zmtp_proxy import ZmtpProxy

PUT_OFF_S = 1.0


@dataclass(slots=True)
class Deeds:
    """done: with the seconds at which each began. skipped: its engine or all others were not healthy at that moment.

    leaving_s: from each SIGTERM to the end of the process.
    """

    done: list[tuple[float, Event]] = field(default_factory=list)
    skipped: Counter[Kind] = field(default_factory=Counter)
    leaving_s: list[float] = field(default_factory=list)

    def by_kind(self) -> dict[str, int]:
        counted = Counter(event.kind for _, event in self.done)
        return {str(kind): counted[kind] for kind in Kind}


class Disturber:
    """`tick` does what is due; `make_whole` ends everything at once."""

    def __init__(self, cluster: ProxiedCluster, doors: Sequence[Door], events: Sequence[Event]) -> None:
        self.deeds = Deeds()
        self._cluster = cluster
        self._doors = doors
        self._ahead = list(events)
        self._lasting: list[tuple[float, Event]] = []
        self._leaving: dict[str, float] = {}
        self._restarts: list[threading.Thread] = []

    def tick(self, now: float) -> None:
        """now: seconds since the start."""
        self._see_who_has_left()
        if self._cluster.mounted is not None:
            self._cluster.mounted.tick(now)
        for end_s, event in list(self._lasting):
            if end_s <= now and self._may_end(event):
                self._lasting.remove((end_s, event))
                self._end(event, now)
        while self._ahead and self._ahead[0].at_s <= now:
            self._begin(self._ahead.pop(0), now)

    def make_whole(self) -> None:
        """Every process runs, and every frontend has admitted every engine."""
        for _, event in self._lasting:
            if event.kind in ENDS_THE_PROCESS:
                self._engine(event).wait()
            self._end(event, 0.0)
        self._lasting.clear()
        if self._cluster.mounted is not None:
            self._cluster.mounted.make_whole()
        self._see_who_has_left()
        for thread in self._restarts:
            thread.join()
        for engine in self._cluster.engines:
            if not engine.is_alive:
                engine.start()
        self._cluster.wait_for_engines()

    def _begin(self, event: Event, now: float) -> None:
        if not self._may_begin(event):
            if event.kind is Kind.REVOKE:
                # Too rare to be left out.
                insort(self._ahead, replace(event, at_s=now + PUT_OFF_S), key=lambda other: other.at_s)
            else:
                self.deeds.skipped[event.kind] += 1
            return
        self.deeds.done.append((round(now, 2), event))
        if event.kind is not Kind.BLIP and event.kind not in CHANGES_KEYS:
            self._lasting.append((now + event.lasts_s, event))
        match event.kind:
            case Kind.KILL:
                self._engine(event).kill()
            case Kind.TERM:
                engine = self._engine(event)
                engine.signal(signal.SIGTERM)
                self._leaving[engine.identity] = monotonic()
            case Kind.STOP:
                self._engine(event).signal(signal.SIGSTOP)
            case Kind.FRONTEND:
                door = self._door(event)
                door.close()
                door.frontend.kill()
            case Kind.CUT:
                for proxy in self._proxies(event):
                    proxy.cut()
            case Kind.SILENCE:
                for proxy in self._proxies(event):
                    proxy.silence()
            case Kind.DELAY:
                for proxy in self._proxies(event):
                    proxy.to_engine.delay_s = proxy.to_frontend.delay_s = 0.3
            case Kind.BLIP:
                for proxy in self._proxies(event):
                    gate = proxy.to_engine if event.to_engine else proxy.to_frontend
                    gate.drop(event.num_messages)
            case _:
                self._keys.begin(event, self._identity(event), now)

    def _may_end(self, event: Event) -> bool:
        return event.kind not in ENDS_THE_PROCESS or not self._engine(event).is_alive

    def _end(self, event: Event, now: float) -> None:
        match event.kind:
            case Kind.KILL | Kind.TERM:
                self._engine(event).start()
            case Kind.STOP:
                self._engine(event).signal(signal.SIGCONT)
            case Kind.FRONTEND:
                thread = threading.Thread(target=self._restart, args=(self._door(event),), daemon=True)
                self._restarts.append(thread)
                thread.start()
            case Kind.REVOKE | Kind.BROKEN_LIST:
                self._keys.end(event, self._identity(event), now)
            case _:
                for proxy in self._proxies(event):
                    proxy.restore()

    def _restart(self, door: Door) -> None:
        door.frontend.start()
        door.open()

    def _may_begin(self, event: Event) -> bool:
        match event.kind:
            case Kind.FRONTEND | Kind.ROTATE_SERVER | Kind.RETIRE_SERVER:
                return True
            case Kind.BROKEN_LIST:
                # Without a good list no frontend starts.
                return self._door(event).is_open
            case Kind.ROTATE_ENGINE | Kind.RETIRE_ENGINE:
                return self._keys.is_allowed(self._engine(event).identity)
            case _:
                return self._is_one_of_several_healthy(event)

    def _is_one_of_several_healthy(self, event: Event) -> bool:
        """Whether its engine and another one are healthy, in truth and not by the plan: a start takes as long as the
        machine needs, and an engine that is killed while it starts has no stream to lose."""
        disturbed = {other.engine for _, other in self._lasting}
        healthy = {e.identity for i, e in enumerate(self._cluster.engines) if i not in disturbed and e.is_alive}
        for door in self._doors:
            if door.is_open:
                try:
                    views = door.frontend.engines()
                except httpx.TransportError:
                    return False
                healthy &= {name for name, view in views.items() if view["state"] == "admitted"}
        return self._engine(event).identity in healthy and len(healthy) > 1

    def _see_who_has_left(self) -> None:
        for identity, since in list(self._leaving.items()):
            if not self._cluster.engine(identity).is_alive:
                self.deeds.leaving_s.append(monotonic() - since)
                del self._leaving[identity]

    def _engine(self, event: Event) -> EngineProcess:
        assert event.engine is not None
        return self._cluster.engines[event.engine]

    def _identity(self, event: Event) -> str | None:
        return None if event.engine is None else self._engine(event).identity

    @property
    def _keys(self) -> MountedKeys:
        assert self._cluster.mounted is not None
        return self._cluster.mounted

    def _door(self, event: Event) -> Door:
        assert event.frontend is not None
        return self._doors[event.frontend]

    def _proxies(self, event: Event) -> list[ZmtpProxy]:
        proxies = self._cluster.proxies[self._engine(event).identity]
        return proxies if event.frontend is None else [proxies[event.frontend]]
