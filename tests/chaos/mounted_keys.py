"""The keys of a chaos run's cluster: one store, and what each process has mounted of it, some seconds behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from roundhouse.cli.key_store import KeyStore
from roundhouse.transport.keys import ALLOWED
from tests.chaos.plan import Event, Kind
from tests.chaos.secret_mount import SecretMount

LONGEST_DELAY_S = 4.0


class MountedKeys:
    """Each change of the store reaches each mount at a moment of its own, up to `LONGEST_DELAY_S` later, in any order.

    frontends, engines: their names; every one's folder is there at once.
    """

    def __init__(self, folder: Path, *, frontends: Sequence[str], engines: Sequence[str], seed: int) -> None:
        self._store = KeyStore(folder / "store")
        self._store.create(list(engines))
        self._frontends = [SecretMount(folder / name, self._store.frontends) for name in frontends]
        self._engines = {name: SecretMount(folder / name, self._store.engine(name)) for name in engines}
        self._random = Random(f"{seed}/mounts")
        self._due: list[tuple[float, SecretMount]] = []
        self._broken: set[SecretMount] = set()
        self.make_whole()

    def frontend(self, index: int) -> Path:
        return self._frontends[index].folder

    def engine(self, identity: str) -> Path:
        return self._engines[identity].folder

    def is_allowed(self, identity: str) -> bool:
        """Whether the engine has a key that is on the list."""
        return identity in self._store.identities()

    def tick(self, now: float) -> None:
        """Publishes what is due, but to a mount whose list is broken only later."""
        for due_s, mount in list(self._due):
            if due_s <= now and mount not in self._broken:
                self._due.remove((due_s, mount))
                mount.publish()

    def begin(self, event: Event, identity: str | None, now: float) -> None:
        """identity: of the event's engine."""
        match event.kind:
            case Kind.ROTATE_SERVER:
                self._store.rotate_server()
            case Kind.RETIRE_SERVER:
                self._store.retire_server()
            case Kind.BROKEN_LIST:
                assert event.frontend is not None
                mount = self._frontends[event.frontend]
                self._broken.add(mount)
                text = (self._store.frontends / ALLOWED).read_text()
                mount.publish({ALLOWED: text[: len(text) // 2]})
                return
            case _:
                assert identity is not None
                deed = {
                    Kind.ROTATE_ENGINE: self._store.rotate_engine,
                    Kind.RETIRE_ENGINE: self._store.retire_engine,
                    Kind.REVOKE: self._store.revoke,
                }[event.kind]
                deed(identity)
        self._bring(now)

    def end(self, event: Event, identity: str | None, now: float) -> None:
        if event.kind is Kind.BROKEN_LIST:
            assert event.frontend is not None
            mount = self._frontends[event.frontend]
            self._broken.discard(mount)
            mount.publish()
            return
        assert event.kind is Kind.REVOKE
        assert identity is not None
        self._store.add(identity)
        self._bring(now)

    def make_whole(self) -> None:
        """Every mount shows the store."""
        self._due.clear()
        self._broken.clear()
        for mount in self._mounts():
            mount.publish()

    def _bring(self, now: float) -> None:
        self._due += [(now + self._random.uniform(0.0, LONGEST_DELAY_S), mount) for mount in self._mounts()]

    def _mounts(self) -> list[SecretMount]:
        return [*self._frontends, *self._engines.values()]
