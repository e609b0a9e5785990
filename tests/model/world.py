"""One frontend and a few engine processes with everything between them, moved by one event at a time.

A world is what its events made of a scenario: the explorer keeps the events and plays them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from roundhouse.protocol.frames import FrontendMessage
from roundhouse.protocol.identity import EngineIdentity, routing_id
from roundhouse.protocol.messages import Admitted, EngineCoreRequest, Refused
from roundhouse.protocol.session import SessionState
from tests.model.played_engine import EngineSession, PlayedEngine
from tests.model.played_frontend import PlayedFrontend
from tests.model.violation import expect
from tests.model.wire import Connection, Sent, describe, sent
from tests.support.mesh import hello, request

TICK_S = 1.1
"""Over a second, so that a count that stays behind is judged by the second tick that sees it."""

DIRECTIONS = ("to engine", "by dealer", "by push")


class Event(NamedTuple):
    """kind: a method of `World` without its `do_`. subject: of an engine's slot, a connection or a request."""

    kind: str
    subject: str = ""
    direction: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


@dataclass(frozen=True, slots=True)
class Scenario:
    """slots: name → (identity, process start), of the engines that run at the beginning.

    faults: kinds of events that cost one of num_faults. Ticks and dials cost nothing of that but are bounded as well;
    the fair scheduler has as many as it needs. has_begun: the engines are admitted and the first request is placed.
    """

    name: str
    slots: dict[str, tuple[str, int]]
    requests: tuple[str, ...]
    faults: frozenset[str]
    num_faults: int
    depth: int
    num_tokens: int = 2
    tokens_a_step: int = 1
    max_ticks: int = 2
    max_dials: int = 3
    has_begun: bool = False


class World:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now = 0.0
        self.faults_left = scenario.num_faults
        self.num_ticks = 0
        self.num_dials = 0
        self.is_fair = False
        self.connections: dict[str, Connection] = {}
        self.engines: dict[str, PlayedEngine] = {}
        self.to_come = list(scenario.requests)
        self._by_routing_id: dict[bytes, Connection] = {}
        self._nonces = count(1)
        self._session_ids = count(1)
        self._instances = count(1)
        self._newest_start = 0
        for slot, (identity, start) in scenario.slots.items():
            self._newest_start = max(start, self._newest_start)
            self._start_engine(slot, identity, start)
        self._start_frontend()

    def apply(self, event: Event) -> None:
        """Plays `event` and judges what came of it. Raises `Violation`, or whatever the machines raise: one too."""
        self.play(event)
        self.check()

    def play(self, event: Event) -> None:
        """`apply` without the judgement, for events that were judged before."""
        if not self.is_fair and event.kind in self.scenario.faults:
            self.faults_left -= 1
        do = getattr(self, "do_" + event.kind.replace(" ", "_"))
        match event:
            case Event(_, "", ""):
                do()
            case Event(_, subject, ""):
                do(subject)
            case _:
                do(event.subject, event.direction)
        for name in [name for name, connection in self.connections.items() if connection.is_spent]:
            del self._by_routing_id[self.connections.pop(name).routing_id]

    def begin(self, setup: list[Event]) -> None:
        """The scenario begins behind these events, with all its faults left."""
        for event in setup:
            self.play(event)
        self.faults_left = self.scenario.num_faults
        self.num_ticks = self.num_dials = 0

    def enabled(self) -> list[Event]:
        """Every event that may come next, faults as long as there are some left."""
        events = [*self.deliveries(), *self._of_processes()]
        if self.faults_left > 0:
            events += [event for event in self._faults() if event.kind in self.scenario.faults]
        return events

    def deliveries(self) -> list[Event]:
        return [
            Event("deliver", connection.name, direction)
            for connection in self.connections.values()
            for direction in DIRECTIONS
            if connection.queue(direction)
        ]

    def _of_processes(self) -> list[Event]:
        events = [Event("add", request_id) for request_id in self.to_come[:1]]
        for slot, engine in self.engines.items():
            if not engine.is_running:
                events.append(Event("restart", slot))
                continue
            if not engine.sessions and (self.is_fair or self.num_dials < self.scenario.max_dials):
                events.append(Event("dial", slot))
            if engine.has_work:
                events.append(Event("step", slot))
            if engine.is_draining and engine.computing:
                events.append(Event("end drain", slot))
            events += [Event("forgotten", s.connection.name) for s in engine.sessions.values() if self._is_forgotten(s)]
        events += [
            Event("bury", member.hello.identity) for member in self.frontend.engines.members() if member.is_unreachable
        ]
        if self.is_fair or self.num_ticks < self.scenario.max_ticks:
            events.append(Event("tick"))
        return events

    def _faults(self) -> list[Event]:
        events: list[Event] = []
        for delivery in self.deliveries():
            if not self.connections[delivery.subject].is_up:
                continue
            events.append(Event("drop", *delivery[1:]))
            if not self._is_add(delivery):
                events.append(Event("duplicate", *delivery[1:]))
        for slot, engine in self.engines.items():
            if not engine.is_running:
                continue
            events += [Event("crash", slot), Event("die", slot)]
            if not engine.is_draining:
                events.append(Event("drain", slot))
        events += [Event("blip", connection.name) for connection in self.connections.values() if connection.is_up]
        for member in self.frontend.engines.members():
            events += [Event("silent", member.hello.identity), Event("drain by hand", member.hello.identity)]
        events += [Event("abort", request_id) for request_id, s in self.frontend.shown.items() if not s.ended]
        events.append(Event("restart frontend"))
        return events

    def _is_add(self, delivery: Event) -> bool:
        """A request that came twice would be refused as live, and with that ended: a known weakness."""
        queue = self.connections[delivery.subject].queue(delivery.direction)
        return isinstance(queue[0].message, EngineCoreRequest)

    def do_deliver(self, name: str, direction: str) -> None:
        connection = self.connections[name]
        self._hand_over(connection, direction, connection.queue(direction).popleft())

    def do_drop(self, name: str, direction: str) -> None:
        """A frame is lost and nobody is told."""
        self.connections[name].queue(direction).popleft()

    def do_duplicate(self, name: str, direction: str) -> None:
        queue = self.connections[name].queue(direction)
        queue.appendleft(queue[0])

    def do_add(self, request_id: str) -> None:
        self.to_come.remove(request_id)
        self.frontend.add(self._request(request_id))

    def do_abort(self, request_id: str) -> None:
        self.frontend.abort(request_id)

    def do_dial(self, slot: str) -> None:
        self.num_dials += 1
        self.engines[slot].dial(self.now)

    def do_step(self, slot: str) -> None:
        self.engines[slot].step()

    def do_crash(self, slot: str) -> None:
        self.engines[slot].exit()

    def do_die(self, slot: str) -> None:
        self.engines[slot].die()

    def do_drain(self, slot: str) -> None:
        self.engines[slot].drain()

    def do_end_drain(self, slot: str) -> None:
        self.engines[slot].abort_all()

    def do_restart(self, slot: str) -> None:
        """Another process with the identity, and the highest epoch of all."""
        self._newest_start += 1
        self._start_engine(slot, self.engines[slot].hello.identity, self._newest_start)

    def do_blip(self, name: str) -> None:
        """The connection breaks. The engine sees it at once, the frontend when it sends or is told by a new session."""
        connection = self.connections[name]
        connection.end()
        self._tell_broken(connection)

    def do_forgotten(self, name: str) -> None:
        """The engine's patience ends: it was not answered, or hears no Ping any more."""
        found = self._session_at(self.connections[name])
        assert found is not None
        found[0].on_silence(found[1], self.now)

    def do_silent(self, identity: str) -> None:
        self.frontend.stay_silent(self.frontend.engines._holders[identity])

    def do_bury(self, identity: str) -> None:
        self.frontend.bury(self.frontend.engines._holders[identity])

    def do_drain_by_hand(self, identity: str) -> None:
        self.frontend.drain(self.frontend.engines._holders[identity])

    def do_tick(self) -> None:
        self.num_ticks += 1
        self.now += TICK_S
        self.frontend.tick()

    def do_restart_frontend(self) -> None:
        """Its clients are gone with it; new ones ask for the same, under the same ids."""
        for connection in self.connections.values():
            connection.end()
            connection.by_dealer.clear()
            connection.by_push.clear()
            self._tell_broken(connection)
        self.to_come = list(self.scenario.requests)
        self._start_frontend()

    def check(self) -> None:
        """What holds in every state. Raises `Violation`."""
        members = self.frontend.engines.members()
        identities = [member.hello.identity for member in members]
        expect(len(set(identities)) == len(identities), f"two members are alive with one identity: {identities}")
        placed = self.frontend.placed()
        for request_id, live in placed.items():
            assert live.member is not None
            known = self.frontend.engines.get(live.member.session_id) is live.member
            expect(live.member.is_alive and known, f"{request_id} is placed with an engine that is over")
        for member in members:
            num_placed = sum(live.member is member for live in placed.values())
            expect(member.num_inflight == num_placed, f"{member.num_inflight} in flight, {num_placed} placed")
        self._check_attempts()
        self._check_orphans()

    def _check_attempts(self) -> None:
        live = self.frontend.live._live
        holders: dict[str, list[str]] = {}
        for slot, engine in self.engines.items():
            for (client, request_id), computing in engine.computing.items():
                session = engine.sessions.get(client)
                is_ours = session is not None and session.link.frontend_instance == self.frontend.instance
                mine = live.get(request_id)
                if is_ours and mine is not None and mine.attempt == computing.request.attempt:
                    holders.setdefault(request_id, []).append(slot)
        for request_id, slots in holders.items():
            expect(len(slots) == 1, f"{request_id} has its current attempt at {slots}")

    def _check_orphans(self) -> None:
        for slot, engine in self.engines.items():
            told = {client for client, message in engine.inbox if isinstance(message, str)}
            for client, request_id in engine.computing:
                expect(client in engine.sessions or client in told, f"{slot} keeps the orphan {request_id}")

    def key(self) -> int:
        """Equal for states that have the same futures."""
        return hash(
            (
                self.faults_left,
                self.num_ticks,
                self.num_dials,
                tuple(self.to_come),
                tuple([engine.key() for engine in self.engines.values()]),
                tuple([connection.key() for connection in self.connections.values()]),
                self.frontend.key(),
            )
        )

    @property
    def is_settled(self) -> bool:
        """Every request has come and ended, every engine is idle and admitted, or kept out by its better twin."""
        if self.to_come or not all(shown.ended for shown in self.frontend.shown.values()):
            return False
        here = {member.hello.identity for member in self.frontend.engines.members()}
        return all(
            engine.is_running and not engine.computing and not engine.is_draining and engine.hello.identity in here
            for engine in self.engines.values()
        )

    def describe(self, event: Event) -> str:
        """To be called before the event is applied."""
        if event.direction:
            return f"{event}: {describe(self.connections[event.subject].queue(event.direction)[0].message)}"
        return str(event)

    def _request(self, request_id: str) -> EngineCoreRequest:
        number = self.scenario.requests.index(request_id) + 1
        return request(request_id, prompt=[number], max_tokens=self.scenario.num_tokens)

    def _start_engine(self, slot: str, identity: str, start: int) -> None:
        self.engines[slot] = PlayedEngine(
            hello(identity, epoch=(1, start)), self.scenario.tokens_a_step, lambda: self._open_connection(slot)
        )

    def _start_frontend(self) -> None:
        instance = f"frontend {next(self._instances)}"
        self.frontend = PlayedFrontend(instance, self._session_ids, lambda: self.now, self._transmit)

    def _open_connection(self, slot: str) -> Connection:
        number = next(self._nonces)
        identity = EngineIdentity(self.engines[slot].hello.identity)
        connection = Connection(f"{slot}{number}", routing_id(identity, number.to_bytes(16, "big")))
        self.connections[connection.name] = self._by_routing_id[connection.routing_id] = connection
        return connection

    def _transmit(self, to: bytes, message: FrontendMessage) -> bool:
        connection = self._by_routing_id.get(to)
        if connection is None or not connection.is_up:
            return False
        connection.to_engine.append(sent(message))
        return True

    def _hand_over(self, connection: Connection, direction: str, item: Sent) -> None:
        match direction:
            case "to engine":
                found = self._session_at(connection)
                if found is not None:
                    found[0].receive(found[1], item.message, self.now)  # type: ignore[arg-type]
            case "by dealer":
                self.frontend.receive_by_router(connection.routing_id, item.message)  # type: ignore[arg-type]
            case _:
                self.frontend.receive_by_pull(item.message, connection.routing_id)  # type: ignore[arg-type]

    def _session_at(self, connection: Connection) -> tuple[PlayedEngine, EngineSession] | None:
        for engine in self.engines.values():
            for session in engine.sessions.values():
                if session.connection is connection:
                    return engine, session
        return None

    def _tell_broken(self, connection: Connection) -> None:
        found = self._session_at(connection)
        if found is not None:
            found[0].on_broken(found[1], self.now)

    def _is_forgotten(self, session: EngineSession) -> bool:
        """What the session waits for will never come, and nothing is on the way that could change that."""
        connection = session.connection
        if connection.by_dealer or connection.by_push:
            return False
        if session.link.state is SessionState.GREETED:
            return not any(isinstance(item.message, Admitted | Refused) for item in connection.to_engine)
        is_known = any(member.routing_id == connection.routing_id for member in self.frontend.engines.members())
        return not connection.to_engine and not is_known
