import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundhouse.protocol.errors import ConfigError, MalformedFrame
from roundhouse.protocol.identity import EngineIdentity, parse_routing_id, routing_id
from roundhouse.protocol.limits import MAX_IDENTITY_BYTES

NONCES = st.binary(min_size=16, max_size=16)
NAMES = st.text(min_size=1, max_size=MAX_IDENTITY_BYTES // 4).filter(lambda name: "\0" not in name)


@given(NAMES.map(EngineIdentity), NONCES)
def test_a_routing_id_is_read_back(identity: EngineIdentity, nonce: bytes) -> None:
    assert parse_routing_id(routing_id(identity, nonce)) == (identity, nonce)


@given(st.binary(max_size=200))
def test_anything_else_is_malformed(raw: bytes) -> None:
    try:
        identity, nonce = parse_routing_id(raw)
    except MalformedFrame:
        return
    assert routing_id(identity, nonce) == raw


@pytest.mark.parametrize("identity", ["", "a\0b", "x" * (MAX_IDENTITY_BYTES + 1)])
def test_an_identity_that_has_no_routing_id(identity: str) -> None:
    with pytest.raises(ConfigError, match="an engine identity has"):
        routing_id(EngineIdentity(identity), bytes(16))
    with pytest.raises(MalformedFrame):
        parse_routing_id(identity.encode() + b"\0" + bytes(16))
