"""Who shares a prefix cache with whom: the salt of the client's API key, and the client's own one.

A cached prefix answers sooner, so who shares a cache can find out what others have asked (CVE-2025-46570). A salt
parts caches: two requests share one exactly when both of their salts are equal.
"""

from __future__ import annotations

from hashlib import sha256

from starlette.types import Scope

from roundhouse.server.api_keys import ApiKey

_STATE_KEY = "cache_salt"


def set_key_salt(scope: Scope, key: ApiKey) -> None:
    """The same in every frontend, and not the key's hash: it travels to engines."""
    scope.setdefault("state", {})[_STATE_KEY] = sha256(b"roundhouse cache salt 1:" + key.digest).hexdigest()


def request_salt(scope: Scope, from_body: str | None) -> str | None:
    """The salt of a request; the body's as it is where keys have none."""
    of_key = scope.get("state", {}).get(_STATE_KEY)
    if of_key is None or from_body is None:
        return of_key or from_body
    return sha256(f"{of_key}:{from_body}".encode("utf-8", "surrogatepass")).hexdigest()
