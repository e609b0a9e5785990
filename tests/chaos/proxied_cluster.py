"""A cluster in which each engine reaches each frontend through a proxy of its own, and what keeps it in order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.chaos.mounted_keys import MountedKeys
from tests.support.cluster import Cluster, EngineProcess, FrontendProcess, eventually
from tests.support.zmtp_proxy import ZmtpProxy


class ProxiedCluster(Cluster):
    """proxies: by the engine's identity, one for each frontend, in the order of `frontends`.

    mounted: keys of frontend-0, …, e-0, …; the mesh is closed then.
    """

    def __init__(
        self,
        folder: Path,
        model: str,
        *,
        engine_arguments: Sequence[str] = (),
        frontend_arguments: Sequence[str] = (),
        mounted: MountedKeys | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(folder, model, frontend_arguments=frontend_arguments, **settings)
        self.mounted = mounted
        if mounted is not None:
            self.frontends = [
                FrontendProcess(
                    *(frontend.name, folder, model, frontend.mesh),
                    [*frontend_arguments, "--mesh-keys", str(mounted.frontend(index))],
                )
                for index, frontend in enumerate(self.frontends)
            ]
        self.proxies = {e.identity: [ZmtpProxy(frontend.mesh) for frontend in self.frontends] for e in self.engines}
        self.engines = [
            EngineProcess(
                engine.identity,
                self.nursery,
                engine.log,
                [
                    *(model, "--frontends", ",".join(proxy.address for proxy in self.proxies[engine.identity])),
                    *engine_arguments,
                    *([] if mounted is None else ["--mesh-keys", str(mounted.engine(engine.identity))]),
                ],
            )
            for engine in self.engines
        ]
        self._proxy_stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for proxies in self.proxies.values():
                for proxy in proxies:
                    stack.enter_context(proxy)
            super().__enter__()
            self._proxy_stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._proxy_stack:
            super().__exit__(kind, error, tb)


def start_what_is_down(cluster: Cluster) -> None:
    """Every process runs, and every frontend has admitted every engine."""
    for frontend in cluster.frontends:
        if frontend.process is None or frontend.process.poll() is not None:
            frontend.start()
    for engine in cluster.engines:
        if not engine.is_alive:
            engine.start()
    cluster.wait_for_engines()


def start_alone(cluster: Cluster, engine: EngineProcess) -> None:
    """`engine` runs and is admitted, and no other one is."""
    for other in cluster.engines:
        if other is not engine and other.is_alive:
            other.kill()
            other.wait()
    if not engine.is_alive:
        engine.start()
    for frontend in cluster.frontends:
        eventually(
            lambda: (
                {name: view["state"] for name, view in frontend.engines().items()}  # noqa: B023
                == {engine.identity: "admitted"}
            ),
            f"only {engine.identity} at {frontend.name}",
            frontend.log,
        )


def contended(seconds: float) -> float:
    """A time limit that holds on a quiet machine, for one whose cores are shared with others: as many times longer as
    there are processes for each core."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
