"""The clients against servers on loopback that keep their side of a stream, or do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.soak.clients import Clients
from tests.soak.http_client import Address, get_text
from tests.soak.misbehaving import Manner, Misbehaviour
from tests.soak.mix import COMPLETIONS, Request
from tests.soak.tally import Outcome, Tally, Unexpected

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

STREAMED = Request("seed", COMPLETIONS, {"max_tokens": 4, "stream": True}, keeps_alive=True)
BAD = Misbehaviour(Manner.ASKS_BADLY, STREAMED, detail="wrong type", raw_body=b"{}", status=400)
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = (
    b'data: {"choices":[{"index":0,"finish_reason":"stop"}],"usage":null}\n\n'
    b'data: {"choices":[],"usage":{"completion_tokens":4}}\n\ndata: [DONE]\n\n'
)


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


WHOLE = HEAD + chunked(EVENTS[:50]) + chunked(EVENTS[50:]) + b"0\r\n\r\n"


def answering(*answers: bytes) -> Serve:
    """Answers the requests of a connection in order, then closes it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
            await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
            writer.write(answer)
        writer.close()

    return serve


def tally_of(serve: Serve, act: Callable[[Clients], Awaitable[None]]) -> Tally:
    async def scenario() -> Tally:
        tally = Tally()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            await act(Clients(Address(*server.sockets[0].getsockname()), tally, lambda: 7.0))
        return tally

    return asyncio.run(scenario())


def test_two_whole_answers_by_one_connection() -> None:
    tally = tally_of(answering(WHOLE, WHOLE), lambda clients: clients.stream(iter([STREAMED, STREAMED])))
    assert tally.outcomes == {("seed", Outcome.AS_MEANT): 2}
    assert (tally.statuses, tally.finish_reasons, tally.num_tokens) == ({200: 2}, {"stop": 2}, 8)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"", "the server closed the connection"),
        (HEAD + chunked(EVENTS), "the server closed the connection"),
        (HEAD + chunked(EVENTS[:-20]) + b"0\r\n\r\n", "no [DONE]"),
        (b"HTTP/1.1 503 Oh\r\nContent-Length: 2\r\n\r\nno", "status 503: b'no'"),
    ],
    ids=["no answer", "cut off", "no DONE", "refused"],
)
def test_answers_that_are_not_whole(answer: bytes, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.soak.clients.PAUSE_AFTER_FAILURE_S", 0.0)
    tally = tally_of(answering(answer), lambda clients: clients.stream(iter([STREAMED])))
    assert tally.outcomes == {("seed", Outcome.WRONG): 1}
    (failure,) = tally.failures
    assert (failure.kind, failure.request_id, failure.at_s) == ("seed", "soak-1", 7.0)
    assert what in failure.what


def test_a_refusal_leaves_the_connection_usable() -> None:
    refusal = b'HTTP/1.1 400 Bad\r\nContent-Length: 11\r\n\r\n{"error":{}'
    tally = tally_of(answering(refusal, WHOLE), lambda clients: clients.misbehave(BAD))
    assert tally.outcomes == {("bad: wrong type", Outcome.AS_MEANT): 1}
    tally = tally_of(answering(refusal), lambda clients: clients.misbehave(BAD))
    assert tally.outcomes == {("bad: wrong type", Outcome.WRONG): 1}
    tally = tally_of(answering(WHOLE), lambda clients: clients.misbehave(BAD))
    assert "status 200 instead of 400" in tally.failures[0].what


def test_get() -> None:
    async def scenario(serve: Serve) -> str:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            return await get_text(Address(*server.sockets[0].getsockname()), "/metrics")

    assert asyncio.run(scenario(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup"))) == "up"
    with pytest.raises(Unexpected, match="/metrics answered 500"):
        asyncio.run(scenario(answering(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")))
