"""`Dialer`: which frontends an engine should have a session with, and when to try each again. Pure: `now` is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from roundhouse.transport.address import FrontendAddress, TcpAddress
from roundhouse.transport.backoff import Backoff

FIRST_S = 0.05
LONGEST_S = 1.0
"""A frontend that is not there is asked for at most once a second, for ever: 0.3 ms of CPU a time."""

REFUSED_LONGEST_S = 10.0


@dataclass(slots=True)
class _Target:
    broken: Backoff
    refused: Backoff
    due: float
    is_held: bool = False
    instance: str | None = None
    sources: set[object] = field(default_factory=set)


class Dialer:
    """Targets come from a static list, from names that are looked up, and from frontends that name each other.

    A target stays as long as one of these sources names it or a session holds it.
    """

    def __init__(self, static: Iterable[FrontendAddress], random: Callable[[], float], now: float) -> None:
        self._random = random
        self._targets: dict[FrontendAddress, _Target] = {}
        self.set_source("static", static, now)

    def set_source(self, source: TcpAddress | int | str, addresses: Iterable[FrontendAddress], now: float) -> None:
        """`source` names `addresses` and no others from now on. New ones are due at once."""
        wanted = list(addresses)
        for address in wanted:
            if address in self._targets:
                continue
            self._targets[address] = _Target(
                Backoff(self._random, first_s=FIRST_S, longest_s=LONGEST_S),
                Backoff(self._random, first_s=LONGEST_S, longest_s=REFUSED_LONGEST_S),
                due=now,
            )
        for address, target in list(self._targets.items()):
            if address in wanted:
                target.sources.add(source)
            else:
                target.sources.discard(source)
                self._forget_if_unwanted(address, target)

    def due(self, now: float) -> list[FrontendAddress]:
        """Targets to open a session with now; each counts as held from here on."""
        held = {target.instance for target in self._targets.values() if target.is_held} - {None}
        opened: list[FrontendAddress] = []
        for address, target in self._targets.items():
            if target.is_held or target.due > now:
                continue
            if target.instance in held:
                # The same frontend by another name: a second session would end the first, and so on for ever.
                target.due = now + LONGEST_S
                continue
            target.is_held = True
            if target.instance is not None:
                held.add(target.instance)
            opened.append(address)
        return opened

    def next_due(self) -> float | None:
        return min((target.due for target in self._targets.values() if not target.is_held), default=None)

    def admitted(self, address: FrontendAddress, instance: str) -> None:
        """`instance`: the frontend that really sits there."""
        target = self._targets[address]
        target.instance = instance
        target.broken.reset()
        target.refused.reset()

    def closed(self, address: FrontendAddress, *, was_refused: bool, now: float) -> None:
        """The session with `address` is over; it is due again after a back-off, if a source still names it."""
        target = self._targets[address]
        target.is_held = False
        target.due = now + (target.refused if was_refused else target.broken).next_s()
        self._forget_if_unwanted(address, target)

    def _forget_if_unwanted(self, address: FrontendAddress, target: _Target) -> None:
        if not target.sources and not target.is_held:
            del self._targets[address]
