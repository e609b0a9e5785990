"""API keys: what a key file says, and which key a client has. Nothing behind `parse_keys` holds a key, only hashes.

A key is as good as its length: 256 random bits as `roundhouse api-key` makes them need no slow hash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from roundhouse.protocol import limits
from roundhouse.protocol.errors import ConfigError

SHORT_KEY_CHARS = 16
"""A plain key below this can be guessed by who has the time."""

_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")
_KEY = re.compile(r"[\x21-\x7e]+")
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """digest: SHA-256 of the key. name: for people; not a secret."""

    digest: bytes
    name: str
    is_short: bool = False


def key_of(text: str, *, name: str) -> ApiKey:
    """Raises `ConfigError`, which does not quote the key."""
    if not _KEY.fullmatch(text) or len(text) > limits.MAX_API_KEY_CHARS:
        raise ConfigError(
            f"an API key has 1 to {limits.MAX_API_KEY_CHARS} printable ASCII characters and no blank ({name})"
        )
    return ApiKey(sha256(text.encode()).digest(), name, is_short=len(text) < SHORT_KEY_CHARS)


def parse_keys(text: str, *, source: str) -> list[ApiKey]:
    """One key a line: `sha256:<64 hex digits>` or the key itself, and a name if you like; `#` begins a comment line.

    source: the file's name, and the name of keys that have none. Raises `ConfigError` that names the line and never
    quotes it: what is wrong in a file of keys may be a key.
    """
    keys: list[ApiKey] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{source}, line {number}"
        if len(words) > 2 or not all(_NAME.fullmatch(word) for word in words[1:]):
            raise ConfigError(f"{where}: a line is a key, or a key, a blank and a name")
        name = words[1] if len(words) > 1 else source
        if not words[0].startswith("sha256:"):
            keys.append(key_of(words[0], name=name if len(words) > 1 else where))
        elif found := _HASH.fullmatch(words[0]):
            keys.append(ApiKey(bytes.fromhex(found[1]), name))
        else:
            raise ConfigError(f"{where}: a hash is sha256: and 64 hexadecimal digits")
    return keys


class KeyRing:
    """The keys that are valid now."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        """Raises `ConfigError` when there is none: no key at all would close the server to everybody, or, read as "no
        keys are wanted", open it."""
        self.keys = tuple(keys)
        if not 0 < len(self.keys) <= limits.MAX_API_KEYS:
            raise ConfigError(f"1 to {limits.MAX_API_KEYS} API keys are needed, and {len(self.keys)} are given")

    def find(self, given: bytes) -> ApiKey | None:
        """The key that a client sent. Takes the same time for any key of one length, valid or not: digests are of one
        size, and all are compared."""
        digest = sha256(given).digest()
        found: ApiKey | None = None
        for key in self.keys:
            if compare_digest(key.digest, digest):
                found = key
        return found
