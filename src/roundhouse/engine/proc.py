"""`EngineProc`: the busy loop between two threads. The input thread fills the inbox, the output thread empties the
output queue, and this thread alone touches the engine core.

The loop blocks only while there is nothing to do. It ends when it is told to stop and nothing is left, or by an
exception: then the frontends get the last words and the process exits non-zero.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from queue import SimpleQueue

from roundhouse.clock import Clock, monotonic
from roundhouse.engine.core import EngineCore, abort_output
from roundhouse.engine.inbox import Inbox, InboxItem, ShutdownAsked
from roundhouse.engine.shutdown import Shutdown, ShutdownState
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import (
    AbortRequests,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    StartDPWave,
    UtilityOutput,
    UtilityRequest,
)
from roundhouse.transport.items import (
    BusyLoopStatus,
    Drain,
    LinkFailed,
    OutputItem,
    Outputs,
    Received,
    SessionLost,
    SessionOpened,
)

logger = logging.getLogger(__name__)


class EngineProc:
    """One engine core served to any number of clients."""

    def __init__(
        self,
        core: EngineCore,
        inbox: Inbox,
        output_queue: SimpleQueue[OutputItem],
        status: BusyLoopStatus,
        *,
        drain_grace_s: float,
        clock: Clock = monotonic,
    ) -> None:
        self.core = core
        self.input_queue = inbox
        self.output_queue = output_queue
        self.status = status
        self.shutdown = Shutdown(drain_grace_s)
        self._clock = clock
        self._clients: set[ClientIndex] = set()
        self._answers: defaultdict[ClientIndex, list[EngineCoreOutput]] = defaultdict(list)
        self._stats_are_news = False

    def run_busy_loop(self) -> None:
        """Returns when a shutdown was asked for and every request has ended."""
        while self._process_input_queue():
            self._process_engine_step()

    def _process_input_queue(self) -> bool:
        """Handles what waits; blocks first when there is nothing to step. False when the loop is to end."""
        if not self.core.has_requests() and self.shutdown.state is ShutdownState.SERVING:
            self._handle(self.input_queue.get())
        for item in self.input_queue.drain():
            self._handle(item)
        if self.shutdown.is_overdue(self._clock()):
            self._abort_all()
        self._flush_answers()
        return self.core.has_requests() or self.shutdown.state is ShutdownState.SERVING

    def _process_engine_step(self) -> None:
        if not self.core.has_requests():
            return
        self.status.step_started = self._clock()
        outputs = self.core.step(on_executed=self._process_aborts)
        self.status.step_started = None
        self.status.load = self.core.stats()
        for client_index, message in outputs.items():
            self.output_queue.put(Outputs(client_index, message))
        if not self.core.has_requests():
            self._tell_stats(but=outputs.keys())

    def _process_aborts(self) -> None:
        for item in self.input_queue.drain_aborts():
            self._handle(item)

    def _handle(self, item: InboxItem) -> None:
        match item:
            case Received(client_index, message):
                self._handle_client_request(client_index, message)
            case SessionOpened(client_index):
                self._clients.add(client_index)
            case SessionLost(client_index):
                self._clients.discard(client_index)
                self._answers.pop(client_index, None)
                ended = self.core.abort_client(client_index)
                self._stats_are_news = self._stats_are_news or ended > 0
                logger.info("session %d is gone; %d of its requests ended", client_index, ended)
            case ShutdownAsked():
                self._begin_shutdown()
            case LinkFailed(message):
                raise RuntimeError(f"the mesh cannot be reached any more: {message}")

    def _handle_client_request(self, client_index: ClientIndex, message: object) -> None:
        match message:
            case EngineCoreRequest():
                self._add(client_index, message)
            case AbortRequests(request_ids):
                ended = self.core.abort_requests(request_ids, client_index)
                self._stats_are_news = self._stats_are_news or ended > 0
            case UtilityRequest():
                self._call_utility(client_index, message)
            case StartDPWave(wave):
                logger.warning("START_DP_WAVE %d ignored: this engine is in no lock-step group", wave)

    def _add(self, client_index: ClientIndex, message: EngineCoreRequest) -> None:
        if self.shutdown.state is not ShutdownState.SERVING:
            self._answers[client_index].append(abort_output(message))
            return
        refusal = self.core.add_request(message, client_index)
        if refusal is not None:
            self._answers[client_index].append(refusal)

    def _call_utility(self, client_index: ClientIndex, request: UtilityRequest) -> None:
        """A closed list: nothing that a peer names is looked up on an object."""
        match request.method:
            case "reset_prefix_cache":
                output = UtilityOutput(request.call_id, result=self.core.scheduler.reset_prefix_cache())
            case method:
                output = UtilityOutput(request.call_id, failure_message=f"no utility is called {method!r}")
        self.output_queue.put(Outputs(client_index, EngineCoreOutputs(utility_output=output)))

    def _flush_answers(self) -> None:
        """Sends the answers that need no step, and the load when aborts changed it and no step will tell it."""
        answered = list(self._answers)
        for client_index, outputs in self._answers.items():
            message = EngineCoreOutputs(outputs=outputs, scheduler_stats=self.core.stats(), timestamp=self._clock())
            self.output_queue.put(Outputs(client_index, message))
        self._answers.clear()
        if self._stats_are_news and not self.core.has_requests():
            self._tell_stats(but=answered)

    def _tell_stats(self, but: Iterable[ClientIndex]) -> None:
        """Sends the load to every client that did not just get it: gauges fall to zero although no step follows."""
        self._stats_are_news = False
        self.status.load = self.core.stats()
        for client_index in self._clients.difference(but):
            stats = EngineCoreOutputs(scheduler_stats=self.status.load, timestamp=self._clock())
            self.output_queue.put(Outputs(client_index, stats))

    def _begin_shutdown(self) -> None:
        """The first call drains, the second ends what still runs."""
        if self.shutdown.ask(self._clock()) is ShutdownState.DRAINING:
            load = self.core.stats()
            logger.info("draining; running: %d, waiting: %d", load.num_running_reqs, load.num_waiting_reqs)
            self.output_queue.put(Drain("shutdown", self.shutdown.grace_s))

    def _abort_all(self) -> None:
        for client_index, outputs in self.core.abort_all().items():
            self.output_queue.put(Outputs(client_index, outputs))
