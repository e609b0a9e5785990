"""A key folder's texts ↔ values, and each way in which they can be wrong."""

import pytest

from roundhouse.protocol.errors import ConfigError
from roundhouse.protocol.identity import EngineIdentity
from roundhouse.transport.keys import (
    Credential,
    EngineKeys,
    FrontendKeys,
    Grant,
    KeyPair,
    fingerprint,
    format_allowed,
    is_key_file,
    new_pair,
    parse_allowed,
    parse_engine_keys,
    parse_frontend_keys,
)

# The pairs of ZeroMQ's RFC 26/CURVE and its manual's test vectors: Z85, public and secret.
SERVER = KeyPair("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6")
CLIENT = KeyPair("Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs")
ENGINE_0 = EngineIdentity("engine-0")

FRONTEND_FILES = {
    "server-1.key": f"{SERVER.secret}\n",
    "allowed.json": f'{{"engines": {{"engine-0": [{{"key": "{CLIENT.public}"}}]}}}}',
}
ENGINE_FILES = {"client.key": CLIENT.secret, "server-1.pub": SERVER.public, "README": "left alone"}


def test_a_frontends_folder() -> None:
    grant = Grant(ENGINE_0, CLIENT.public)
    assert parse_frontend_keys(FRONTEND_FILES) == FrontendKeys({1: SERVER}, {CLIENT.public: grant})


def test_an_engines_folder_and_what_it_tries_first() -> None:
    other = new_pair().public
    keys = parse_engine_keys({**ENGINE_FILES, "server-2.pub": other})
    assert keys == EngineKeys(CLIENT, {1: SERVER.public, 2: other})
    assert keys.credentials() == [Credential(2, other, CLIENT), Credential(1, SERVER.public, CLIENT)]


def test_which_files_mean_something() -> None:
    names = ["server-1.key", "server-12.pub", "client.key", "allowed.json", "server-0.key", "server-1.key~", "..data"]
    assert [is_key_file(name) for name in names] == [True, True, True, True, False, False, False]


def test_secrets_are_in_no_repr() -> None:
    assert SERVER.secret not in repr(parse_frontend_keys(FRONTEND_FILES))


def test_a_user_id_tells_keys_and_their_meanings_apart() -> None:
    other = new_pair().public
    grants = [Grant(ENGINE_0, CLIENT.public), Grant(ENGINE_0, CLIENT.public, 7), Grant(ENGINE_0, other)]
    assert [grant.user_id for grant in grants] == [
        f"{fingerprint(CLIENT.public)}/*/engine-0",
        f"{fingerprint(CLIENT.public)}/7/engine-0",
        f"{fingerprint(other)}/*/engine-0",
    ]


def test_the_list_is_written_as_it_is_read() -> None:
    keys = [new_pair().public for _ in range(3)]
    identities = [ENGINE_0, ENGINE_0, EngineIdentity("engine-ü")]
    grants = {key: Grant(name, key, epoch) for key, name, epoch in zip(keys, identities, [None, 3, 0], strict=True)}
    assert parse_allowed(format_allowed(grants)) == grants


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"server-1.key": None}, "there is no server-N.key"),
        ({"allowed.json": None}, "there is no allowed.json, which says what engines may connect"),
        ({"server-1.key": "short"}, "server-1.key: a key has 40 characters of Z85, this has 5 or others"),
        ({"server-1.key": "~" * 40}, "server-1.key: a key has 40 characters of Z85, this has 40 or others"),
        ({"server-3.key": SERVER.secret}, "server-1.key and server-3.key: one has to be odd and one even"),
        (
            {"server-2.key": SERVER.secret, "server-3.key": SERVER.secret},
            "more than two generations of the server key: server-1.key, server-2.key, server-3.key",
        ),
        ({"allowed.json": "{"}, "allowed.json: Input data was truncated"),
        ({"allowed.json": '{"engines": 1}'}, "allowed.json: Expected `object`, got `int` - at `$.engines`"),
        ({"allowed.json": '{"engines": {"": []}}'}, "allowed.json: an engine identity has 1 to 128 bytes and no NUL"),
        (
            {"allowed.json": '{"engines": {"a": [{"key": "x", "epoch": 1}]}}'},
            "allowed.json, engine a: a key has 40 characters of Z85, this has 1 or others",
        ),
        (
            {"allowed.json": f'{{"engines": {{"a": [{{"key": "{CLIENT.public}", "epoch": -1}}]}}}}'},
            "allowed.json: engine a has a negative epoch",
        ),
        (
            {"allowed.json": f'{{"engines": {{"a": [{{"key": "{CLIENT.public}"}}, {{"key": "{CLIENT.public}"}}]}}}}'},
            f"allowed.json: the key {fingerprint(CLIENT.public)} of engine a stands there twice",
        ),
    ],
)
def test_what_is_wrong_names_its_file(changes: dict[str, str | None], message: str) -> None:
    files = {name: text for name, text in {**FRONTEND_FILES, **changes}.items() if text is not None}
    with pytest.raises(ConfigError) as raised:
        parse_frontend_keys(files)
    assert raised.value.message.startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client.key": None}, "there is no client.key, the engine's secret key"),
        ({"server-1.pub": None}, "there is no server-N.pub"),
        ({"client.key": ""}, "client.key: a key has 40 characters of Z85, this has 0 or others"),
    ],
)
def test_what_is_wrong_with_an_engines(changes: dict[str, str | None], message: str) -> None:
    files = {name: text for name, text in {**ENGINE_FILES, **changes}.items() if text is not None}
    with pytest.raises(ConfigError) as raised:
        parse_engine_keys(files)
    assert raised.value.message == message
