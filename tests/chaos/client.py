"""Clients on threads of their own: a request runs beside the test, which may look at how far it is and wait for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import monotonic
from typing import Any

import httpx

from tests.chaos.transcript import Answer

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Call:
    """One request. name: for people."""

    name: str
    path: str
    body: dict[str, Any]

    @property
    def num_choices(self) -> int:
        return self.body.get("n") or 1


def new_http_client() -> httpx.Client:
    """For any number of streams at once, none of which has a deadline of its own."""
    return httpx.Client(timeout=None, limits=httpx.Limits(max_connections=None), verify=False)


class Stream:
    """`call`, sent to `url` at once. answer: what came so far. status: 0 before the head came.

    longest_gap_s: between two events of the stream, comments aside.
    """

    def __init__(self, client: httpx.Client, url: str, call: Call) -> None:
        self.call = call
        self.status = 0
        self.headers: dict[str, str] = {}
        self.answer = Answer()
        self.failure: Exception | None = None
        self.longest_gap_s = 0.0
        self._client = client
        self._url = url
        self._progress = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=call.name, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return self._is_over

    def wait_for_tokens(self, num_tokens: int, timeout_s: float) -> None:
        """Until so many tokens of all choices came, or it is over."""
        with self._progress:
            came = self._progress.wait_for(lambda: self._is_over or self.answer.num_tokens >= num_tokens, timeout_s)
        assert came, f"{self}: no {num_tokens} tokens in {timeout_s:g} s"

    def result(self, timeout_s: float) -> Answer:
        """What came until it was over. Raises what the connection ended with."""
        self._thread.join(timeout_s)
        assert self._is_over, f"{self}: not over in {timeout_s:g} s"
        if self.failure is not None:
            raise self.failure
        return self.answer

    def __str__(self) -> str:
        return f"{self.call.name} at {self._url}: status {self.status}, {self.answer.num_tokens} tokens"

    def _run(self) -> None:
        try:
            self._read()
        except (httpx.HTTPError, ValueError) as error:
            self.failure = error
        finally:
            with self._progress:
                self._is_over = True
                self._progress.notify_all()

    def _read(self) -> None:
        with self._client.stream("POST", self._url + self.call.path, json=self.call.body) as response:
            self.status = response.status_code
            self.headers = dict(response.headers)
            if not self.headers.get("content-type", "").startswith("text/event-stream"):
                self.answer.feed_body(response.read())
                return
            last_event_at = monotonic()
            for line in response.iter_lines():
                if line.startswith("data:"):
                    now = monotonic()
                    self.longest_gap_s = max(self.longest_gap_s, now - last_event_at)
                    last_event_at = now
                with self._progress:
                    self.answer.feed_line(line)
                    self._progress.notify_all()
