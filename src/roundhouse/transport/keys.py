"""The keys of the mesh: the texts of a key folder ↔ values. `key_folder` reads the files.

A frontend's folder:
    server-N.key     secret key of generation N. One, or two while they are rotated: an odd and an even one
    allowed.json     {"engines": {IDENTITY: [{"key": PUBLIC KEY}, {"key": PUBLIC KEY, "epoch": GRANTED EPOCH}, …]}}
An engine's folder:
    client.key       its secret key
    server-N.pub     the frontends' public keys, those of both generations while they are rotated

A key is 40 characters of Z85. Public keys are computed from secret ones, so that no two files can disagree. Other names
are left alone. Odd generations listen on the mesh address, even ones two ports above: a port has one server key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import zmq

from roundhouse.protocol.errors import ConfigError
from roundhouse.protocol.identity import EngineIdentity, check_identity

CLIENT_KEY = "client.key"
ALLOWED = "allowed.json"

_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_SERVER_FILE = re.compile(r"server-([1-9][0-9]{0,8})\.(key|pub)")


def server_key_name(generation: int) -> str:
    return f"server-{generation}.key"


def server_pub_name(generation: int) -> str:
    return f"server-{generation}.pub"


def is_secret(name: str) -> bool:
    return name.endswith(".key")


def is_key_file(name: str) -> bool:
    """Whether a key folder's file of that name means anything."""
    return name in (CLIENT_KEY, ALLOWED) or _SERVER_FILE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Z85 texts. Its secret half is in no `repr`."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Grant:
    """What one client key may be: the engine of that identity; with `epoch`, of that granted epoch only."""

    identity: EngineIdentity
    public: str
    epoch: int | None = None

    @property
    def user_id(self) -> str:
        """Another one for each key and for each meaning of it: what is revoked never equals what is allowed."""
        return f"{fingerprint(self.public)}/{'*' if self.epoch is None else self.epoch}/{self.identity}"


@dataclass(frozen=True, slots=True)
class FrontendKeys:
    """servers: by generation. grants: by public key."""

    servers: Mapping[int, KeyPair]
    grants: Mapping[str, Grant]


@dataclass(frozen=True, slots=True)
class Credential:
    """What a session's sockets are opened with."""

    generation: int
    server_public: str
    client: KeyPair


@dataclass(frozen=True, slots=True)
class EngineKeys:
    """servers: public keys by generation."""

    client: KeyPair
    servers: Mapping[int, str]

    def credentials(self) -> list[Credential]:
        """The newest generation first."""
        return [Credential(number, self.servers[number], self.client) for number in sorted(self.servers, reverse=True)]


def new_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def pair_of(secret: str) -> KeyPair:
    return KeyPair(zmq.curve_public(secret.encode()).decode(), secret)


def fingerprint(public: str) -> str:
    """Short enough to read aloud; what logs call a key."""
    return hashlib.sha256(public.encode()).hexdigest()[:16]


def parse_frontend_keys(files: Mapping[str, str]) -> FrontendKeys:
    """files: name → text. Raises `ConfigError` that names the file at fault."""
    servers = {number: pair_of(_key(name, files[name])) for number, name in _servers(files, "key").items()}
    if ALLOWED not in files:
        raise ConfigError(f"there is no {ALLOWED}, which says what engines may connect")
    return FrontendKeys(servers, parse_allowed(files[ALLOWED]))


def parse_engine_keys(files: Mapping[str, str]) -> EngineKeys:
    """files: name → text. Raises `ConfigError` that names the file at fault."""
    client = parse_client_key(files)
    return EngineKeys(client, {number: _key(name, files[name]) for number, name in _servers(files, "pub").items()})


def parse_client_key(files: Mapping[str, str]) -> KeyPair:
    """Of an engine's files. Raises `ConfigError`."""
    if CLIENT_KEY not in files:
        raise ConfigError(f"there is no {CLIENT_KEY}, the engine's secret key")
    return pair_of(_key(CLIENT_KEY, files[CLIENT_KEY]))


class _AllowedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    key: str
    epoch: int | None = None


class _Allowed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    engines: dict[str, list[_AllowedKey]]


def parse_allowed(text: str) -> dict[str, Grant]:
    """By public key, in the order of the file. Raises `ConfigError`."""
    try:
        allowed = msgspec.json.decode(text, type=_Allowed)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{ALLOWED}: {error}") from None
    grants: dict[str, Grant] = {}
    for name, keys in allowed.engines.items():
        try:
            identity = check_identity(name)
        except ConfigError as error:
            raise ConfigError(f"{ALLOWED}: {error.message}") from None
        for entry in keys:
            public = _key(f"{ALLOWED}, engine {name}", entry.key)
            if public in grants:
                raise ConfigError(f"{ALLOWED}: the key {fingerprint(public)} of engine {name} stands there twice")
            if entry.epoch is not None and entry.epoch < 0:
                raise ConfigError(f"{ALLOWED}: engine {name} has a negative epoch")
            grants[public] = Grant(identity, public, entry.epoch)
    return grants


def format_allowed(grants: Mapping[str, Grant]) -> str:
    """The inverse of `parse_allowed`."""
    engines: dict[str, list[_AllowedKey]] = {}
    for grant in grants.values():
        engines.setdefault(grant.identity, []).append(_AllowedKey(grant.public, grant.epoch))
    return msgspec.json.format(msgspec.json.encode(_Allowed(engines)), indent=2).decode() + "\n"


def _servers(files: Mapping[str, str], kind: str) -> dict[int, str]:
    """Generation → file name, in order."""
    found: dict[int, str] = {}
    for name in files:
        match = _SERVER_FILE.fullmatch(name)
        if match is not None and match[2] == kind:
            found[int(match[1])] = name
    if not found:
        raise ConfigError(f"there is no server-N.{kind}")
    numbers = sorted(found)
    if len(numbers) > 2:
        names = ", ".join(found[number] for number in numbers)
        raise ConfigError(f"more than two generations of the server key: {names}")
    if len(numbers) == 2 and numbers[0] % 2 == numbers[1] % 2:
        raise ConfigError(f"{found[numbers[0]]} and {found[numbers[1]]}: one has to be odd and one even")
    return {number: found[number] for number in numbers}


def _key(where: str, text: str) -> str:
    key = text.strip()
    # The text itself is in no message: it may be a secret key with a typo.
    if _KEY.fullmatch(key) is None:
        raise ConfigError(f"{where}: a key has 40 characters of Z85, this has {len(key)} or others")
    try:
        zmq.curve_public(key.encode())
    except (zmq.ZMQError, ValueError):
        raise ConfigError(f"{where}: not a Z85 key") from None
    return key
