"""An engine process without a model: the real socket threads and a busy loop that echoes. `mesh_engine.py CONFIG`.

CONFIG is JSON: {"frontends": […], "identity": …, "epoch": [granted, start], "model": …, "max_message_bytes": …,
"keys": folder, "delay_s": between two outputs}; all but the first two may be left out. An ADD of max_tokens n is
answered with n outputs of one token each: the prompt's tokens over and over.
"""

from __future__ import annotations

import json
import queue
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    Hello,
    PromptLogprobs,
    SchedulerStats,
    UtilityOutput,
    UtilityRequest,
)
from roundhouse.protocol.sampling import FinishReason
from roundhouse.transport.engine_link import EngineLink
from roundhouse.transport.items import (
    Backlog,
    BusyLoopStatus,
    Drain,
    InputItem,
    LinkFailed,
    OutputItem,
    Outputs,
    Received,
    SessionLost,
    SessionOpened,
)
from roundhouse.transport.key_folder import KeyFolder
from roundhouse.transport.keys import parse_engine_keys


def echo(request: EngineCoreRequest) -> list[EngineCoreOutput]:
    """One output for each token. A prompt of one token k > 1000 brings prompt logprobs of k rows with it."""
    assert request.sampling_params is not None
    prompt, total = request.prompt_token_ids, request.sampling_params.max_tokens or 1
    outputs: list[EngineCoreOutput] = []
    for index in range(len(request.output_token_ids), total):
        outputs.append(
            EngineCoreOutput(
                request.request_id,
                request.attempt,
                index,
                [prompt[index % len(prompt)]],
                finish_reason=FinishReason.LENGTH if index == total - 1 else None,
                prompt_logprobs=rows(prompt[0], index) if prompt[0] > 1000 else None,
            )
        )
    return outputs


def rows(count: int, salt: int) -> PromptLogprobs:
    ids = np.arange(count * 2, dtype=np.int32).reshape(count, 2) + salt
    return PromptLogprobs(ids, ids.astype(np.float32) / 3, ids[:, 0].copy())


def pattern(length: int) -> bytes:
    return (b"%d," % length * length)[:length]


class EchoLoop:
    """A busy loop: takes input items until told to stop."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.input_queue: queue.SimpleQueue[InputItem | str] = queue.SimpleQueue()
        self.output_queue: queue.SimpleQueue[OutputItem] = queue.SimpleQueue()
        self.status = BusyLoopStatus(load=SchedulerStats())
        self.backlog = Backlog()
        self.seen: list[InputItem] = []
        granted, started = config.get("epoch", (1, 1))
        model, limit = config.get("model", "echo"), config.get("max_message_bytes", 2**26)
        greeting = Hello(config["identity"], (granted, started), b"", [1], model, "key", 16, 100, 2**20, 64, limit)
        self.link = EngineLink(
            greeting,
            config["frontends"],
            self.input_queue,
            self.output_queue,
            self.status,
            keys=KeyFolder(Path(config["keys"]), parse_engine_keys) if "keys" in config else None,
            backlog=self.backlog,
        )
        self._delay_s = config.get("delay_s", 0.0)

    def run(self) -> None:
        while True:
            item = self.input_queue.get()
            match item:
                case "stop":
                    return
                case LinkFailed(message):
                    raise RuntimeError(message)
                case Received(client_index, message):
                    self.backlog.taken(item)
                    self._answer(client_index, message)
                case SessionOpened() | SessionLost():
                    self.backlog.taken(item)
                    self.seen.append(item)

    def _answer(self, client_index: ClientIndex, message: object) -> None:
        match message:
            case EngineCoreRequest():
                if self._delay_s:
                    threading.Thread(target=self._echo, args=(client_index, message), daemon=True).start()
                else:
                    self._echo(client_index, message)
            case UtilityRequest(call_id, "seen"):
                result = [type(item).__name__ for item in self.seen]
                self._utility(client_index, UtilityOutput(call_id, result))
            case UtilityRequest(call_id, "too_big"):
                self._utility(client_index, UtilityOutput(call_id, b"x" * 2**27))
            case UtilityRequest(call_id, "echo_bytes", [length]):
                self._utility(client_index, UtilityOutput(call_id, pattern(length)))
            case UtilityRequest(call_id, "drain"):
                self.output_queue.put(Drain("asked", 5.0))
                self._utility(client_index, UtilityOutput(call_id))
            case UtilityRequest(call_id, "crash"):
                raise RuntimeError("a crash that was asked for")
            case UtilityRequest(call_id, method):
                self._utility(client_index, UtilityOutput(call_id, failure_message=f"no {method}"))
            case _:
                pass

    def _echo(self, client_index: ClientIndex, request: EngineCoreRequest) -> None:
        for output in echo(request):
            self.output_queue.put(Outputs(client_index, EngineCoreOutputs(outputs=[output])))
            time.sleep(self._delay_s)

    def _utility(self, client_index: ClientIndex, output: UtilityOutput) -> None:
        self.output_queue.put(Outputs(client_index, EngineCoreOutputs(utility_output=output)))


def stop_at_sigterm(loop: EchoLoop) -> None:
    """A handler alone would not do: Python runs it in the main thread, which may just be falling asleep in `get`."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno())

    def wait() -> None:
        with reader, writer:
            reader.recv(1)
        loop.input_queue.put("stop")

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    loop = EchoLoop(json.loads(sys.argv[1]))
    stop_at_sigterm(loop)
    loop.link.start()
    try:
        loop.run()
    except RuntimeError as error:
        loop.link.close(last_words=str(error))
        raise SystemExit(1) from None
    loop.link.close()


if __name__ == "__main__":
    main()
