"""One soak: the load, the samples taken beside it, and the look at what is left when it has stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from tests.soak.clients import Clients
from tests.soak.end_state import GIVE_UP_S, REST_S, ZERO_WITHIN_S, EndState
from tests.soak.exposition import Scrape, not_zero, parse_metrics
from tests.soak.http_client import get_text
from tests.soak.misbehaving import misbehaviours
from tests.soak.mix import crowd, filling, requests
from tests.soak.processes import ProcessSample, sample_tree
from tests.soak.recording import CsvRecorder
from tests.soak.server import SoakServer
from tests.soak.tally import Tally, Unexpected

SAMPLE_EVERY_S = 5.0
MISBEHAVE_EVERY_S = 1.0
FILLING_STREAMS = 8


class Soak:
    """`run` once. `tally` and the recorder's recording fill meanwhile."""

    def __init__(
        self, server: SoakServer, recorder: CsvRecorder, *, model: str, seed: int, streams: int, seconds: float
    ) -> None:
        self.tally = Tally()
        self.load_s = 0.0
        self._server = server
        self._recorder = recorder
        self._model = model
        self._seed = seed
        self._num_streams = streams
        self._seconds = seconds
        self._ended = asyncio.Event()

    def stop(self) -> None:
        """Ends the load early."""
        self._ended.set()

    async def fill(self, num_tokens: int, num_rows: int) -> None:
        """Brings the server to its full size before anything is judged: the pages of every block of the KV caches are
        taken, by prompts of `num_tokens` together, and a crowd of twice `num_rows` requests makes the steps as large as
        they can become. Raises `Unexpected`.
        """
        clients = Clients(self._server.address, self.tally, monotonic)
        for waiting, num_clients in (
            (iter(filling(self._seed, self._model, num_tokens)), FILLING_STREAMS),
            (iter(crowd(self._seed, self._model, 2 * num_rows)), num_rows),
        ):
            await asyncio.gather(*(clients.stream(waiting) for _ in range(num_clients)))
        if self.tally.failures:
            raise Unexpected(self.tally.failures[0].what)

    async def run(self, progress: Callable[[float, Scrape | None], None]) -> EndState:
        """progress: called at every sample with the seconds of load so far."""
        idle = await asyncio.to_thread(sample_tree, self._server.process.pid, 0.0)
        started = monotonic()

        def now() -> float:
            return monotonic() - started

        clients = Clients(self._server.address, self.tally, now)
        tasks = {
            asyncio.create_task(clients.stream(requests(self._seed, i, self._model))) for i in range(self._num_streams)
        }
        tasks.add(asyncio.create_task(self._misbehave(clients)))
        try:
            await self._watch(tasks, now, progress)
        finally:
            self.load_s = now()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return await self._look_at_what_is_left(idle, now)

    async def _misbehave(self, clients: Clients) -> None:
        async with asyncio.TaskGroup() as group:
            for misbehaviour in misbehaviours(self._seed, self._model):
                group.create_task(clients.misbehave(misbehaviour))
                await asyncio.sleep(MISBEHAVE_EVERY_S)

    async def _watch(
        self,
        tasks: set[asyncio.Task[None]],
        now: Callable[[], float],
        progress: Callable[[float, Scrape | None], None],
    ) -> None:
        """Until the time is over, somebody stops it, the server exits or a client's own code fails, which raises."""
        while now() < self._seconds and not self._ended.is_set() and self._server.process.poll() is None:
            scrape = await self._sample(now())
            progress(now(), scrape)
            for task in tasks:
                if task.done():
                    task.result()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(SAMPLE_EVERY_S, max(0.0, self._seconds - now()))):
                    await self._ended.wait()

    async def _sample(self, at_s: float) -> Scrape | None:
        # On a thread: the kernel walks the page tables of a gigabyte meanwhile.
        processes = await asyncio.to_thread(sample_tree, self._server.process.pid, at_s)
        try:
            scrape = await self._scrape()
        except Unexpected:
            scrape = None
        self._recorder.add(at_s, processes, scrape)
        return scrape

    async def _scrape(self) -> Scrape:
        return parse_metrics(await get_text(self._server.address, "/metrics"))

    async def _look_at_what_is_left(self, idle: list[ProcessSample], now: Callable[[], float]) -> EndState:
        pid, stopped_s = self._server.process.pid, now()
        try:
            zero_after_s, left = await self._wait_for_zero(now)
            await asyncio.sleep(max(0.0, ZERO_WITHIN_S - (now() - stopped_s)))
            before = {(s.name, s.pid): s.cpu_s for s in await asyncio.to_thread(sample_tree, pid, now())}
            await asyncio.sleep(REST_S)
            self._recorder.recording.scrapes.append((now(), await self._scrape()))
        except Unexpected:
            return EndState(None, {}, idle, [], {})
        final = await asyncio.to_thread(sample_tree, pid, now())
        cores = {s.name: (s.cpu_s - before[s.name, s.pid]) / REST_S for s in final if (s.name, s.pid) in before}
        return EndState(zero_after_s, left, idle, final, cores)

    async def _wait_for_zero(self, now: Callable[[], float]) -> tuple[float | None, dict[str, float]]:
        """How long it took, None when it never came; and the gauges that are not zero. Raises `Unexpected`."""
        stopped_s = now()
        while left := not_zero(await self._scrape()):
            if now() - stopped_s > GIVE_UP_S:
                return None, left
            await asyncio.sleep(0.05)
        return now() - stopped_s, {}
