import msgspec
import pytest

from roundhouse.protocol.errors import InvalidRequest
from roundhouse.server.unserved import UNSERVED_CHAT, UNSERVED_COMPLETION, UnservedFields

CHAT = UnservedFields(UNSERVED_CHAT)


@pytest.mark.parametrize("name", sorted(UNSERVED_CHAT | UNSERVED_COMPLETION))
def test_a_field_that_is_on_is_refused_by_its_name(name: str) -> None:
    table = UNSERVED_CHAT if name in UNSERVED_CHAT else UNSERVED_COMPLETION
    with pytest.raises(InvalidRequest) as caught:
        UnservedFields(table).refuse(msgspec.json.encode({name: {"type": "json_object"}}))
    assert caught.value.param == name
    assert name in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, offs in UNSERVED_CHAT.items() for value in (*offs, None)]
)
def test_a_field_that_is_off_passes(name: str, value: object) -> None:
    CHAT.refuse(msgspec.json.encode({name: value}))


def test_off_is_a_matter_of_type_too() -> None:
    with pytest.raises(InvalidRequest):
        CHAT.refuse(b'{"best_of": true}')


def test_nothing_else_is_looked_at() -> None:
    CHAT.refuse(b'{"messages": 5, "user": "u", "metadata": {"a": [1]}, "store": true, "stream_interval": 10}')
