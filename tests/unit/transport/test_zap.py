"""What the key handler answers, and what it does to sockets that ask it."""

import pytest
import zmq
from zmq.utils import z85

from roundhouse.protocol.identity import EngineIdentity
from roundhouse.transport.keys import Grant, new_pair
from roundhouse.transport.sockets import ZAP_DOMAIN
from roundhouse.transport.zap import ENDPOINT, ZapHandler, answer

PUBLIC = new_pair().public
RAW = z85.decode(PUBLIC.encode())
GRANT = Grant(EngineIdentity("engine-0"), PUBLIC, 3)


def asked(**changes: bytes) -> list[bytes]:
    fields = {
        "routing_id": b"\0abcd",
        "empty": b"",
        "version": b"1.0",
        "request_id": b"7",
        "domain": ZAP_DOMAIN,
        "address": b"10.0.0.1",
        "identity": b"",
        "mechanism": b"CURVE",
        "credential": RAW,
    }
    return list({**fields, **changes}.values())


def test_a_key_that_is_allowed() -> None:
    reply, refused = answer(asked(), {PUBLIC: GRANT})
    assert reply == [b"\0abcd", b"", b"1.0", b"7", b"200", b"OK", GRANT.user_id.encode(), b""]
    assert refused is None


def test_a_key_that_is_not() -> None:
    reply, refused = answer(asked(), {})
    assert reply == [b"\0abcd", b"", b"1.0", b"7", b"400", b"not allowed", b"", b""]
    assert refused == PUBLIC


def test_whatever_else_is_asked_is_refused() -> None:
    strange = [
        asked(mechanism=b"NULL"),
        asked(mechanism=b"PLAIN"),
        asked(domain=b"another"),
        asked(version=b"2.0"),
        asked(credential=RAW[:-1]),
        [*asked(), b"one more"],
        asked()[:-1],
        asked()[:2],
    ]
    for frames in strange:
        reply, refused = answer(frames, {PUBLIC: GRANT})
        assert (reply[4], reply[6], refused) == (b"400", b"", "")


def test_keys_that_are_made_up_are_told_of_once_for_each_address(caplog: pytest.LogCaptureFixture) -> None:
    context = zmq.Context()
    handler = ZapHandler(context, {}, lambda: 0.0)
    client = context.socket(zmq.REQ)
    try:
        client.connect(ENDPOINT)
        for address in [b"10.0.0.1"] * 5 + [b"10.0.0.2"]:
            request = asked(address=address, credential=z85.decode(new_pair().public.encode()))
            client.send_multipart(request[2:])
            assert client.poll(5000)
            assert client.recv_multipart()[2] == b"400"
    finally:
        client.close(0)
        handler.close()
        context.term()
    assert handler.num_refused == 6
    assert [message.split()[4] for message in caplog.messages] == ["10.0.0.1", "10.0.0.2"]
