"""Constant streams at every frontend, each answer compared with the undisturbed one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from random import Random
from time import monotonic

import httpx

from tests.chaos.client import COMPLETIONS, Call, Stream
from tests.chaos.transcript import Answer
from tests.chaos.verdicts import Outcome, Tally, Verdict, judge
from tests.support.cluster import FrontendProcess

HUNG_S = 400.0
PAUSE_AFTER_FAILURE_S = 0.5
TOPICS = (
    *("the ferry", "a copper mine", "winter markets", "the night train", "an old orchard", "two sisters", "a map"),
    *("the clockmaker", "salt", "a border town", "the flood", "an honest thief", "the long bridge", "glass", "bees"),
    *("a letter", "the observatory", "rope", "the mountain doctor", "a river in spring", "chess", "the bakery"),
    *("an empty theatre", "the lighthouse"),
)


def calls() -> list[Call]:
    """Greedy, with a penalty that every token so far has a part in, and that keeps the text from going in circles."""
    return [
        Call(
            f"about {topic}",
            COMPLETIONS,
            {
                "model": "m",
                "prompt": f"This is a short story about {topic}. It begins",
                "max_tokens": 32 + 8 * (number % 9),
                "temperature": 0,
                "repetition_penalty": 1.3,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                "return_token_ids": True,
            },
        )
        for number, topic in enumerate(TOPICS)
    ]


class Door:
    """One frontend as the clients of a run see it: told before it is taken down, and when it is back."""

    def __init__(self, frontend: FrontendProcess) -> None:
        self.frontend = frontend
        self.life = 0
        self._is_up = threading.Event()
        self._is_up.set()

    def close(self) -> None:
        self._is_up.clear()
        self.life += 1

    def open(self) -> None:
        self._is_up.set()

    @property
    def is_open(self) -> bool:
        return self._is_up.is_set()

    def wait(self, timeout_s: float) -> bool:
        return self._is_up.wait(timeout_s)


class Load:
    """`num_streams` clients, divided among `doors`, from `start` until `stop`. tally: also read while it runs."""

    def __init__(
        self,
        client: httpx.Client,
        doors: Sequence[Door],
        expected: Sequence[tuple[Call, Answer]],
        *,
        num_streams: int,
        seed: int,
    ) -> None:
        self.tally = Tally()
        self._client = client
        self._expected = expected
        self._seed = seed
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._started = monotonic()
        self._threads = [
            threading.Thread(target=self._run, args=(number, doors[number % len(doors)]), daemon=True)
            for number in range(num_streams)
        ]

    def start(self) -> None:
        self._started = monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Returns when every stream is over."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int, door: Door) -> None:
        random = Random(f"{self._seed}/stream/{number}")
        while not self._stopped.is_set():
            call, expected = random.choice(self._expected)
            if not door.wait(1.0):
                continue
            life = door.life
            stream = Stream(self._client, door.frontend.url, call)
            verdict = _verdict(stream, expected)
            if verdict.outcome is Outcome.LOST and door.life != life:
                verdict = Verdict(Outcome.CUT)
            with self._lock:
                name = f"{door.frontend.name}, {call.name}"
                at_s = monotonic() - self._started
                self.tally.count(at_s, name, verdict, stream.answer.num_tokens, stream.longest_gap_s)
            if verdict.outcome is Outcome.LOST:
                self._stopped.wait(PAUSE_AFTER_FAILURE_S)


def _verdict(stream: Stream, expected: Answer) -> Verdict:
    try:
        answer = stream.result(HUNG_S)
    except (httpx.HTTPError, ValueError) as error:
        return Verdict(Outcome.LOST, f"after {stream.answer.num_tokens} tokens: {error!r}")
    except AssertionError as error:
        return Verdict(Outcome.LOST, f"hung: {error}")
    return judge(answer, expected)
