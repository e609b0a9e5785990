"""Chained SHA-256 of full blocks: what the prefix cache and the balancer mean by "the same prefix".

A chain starts at a root that holds the salts (cache salt, adapter), each tagged and length-prefixed so that two kinds
of salt never collide; SHA-256 and not Python's `hash`, whose collisions can be crafted (CVE-2025-25183).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256
from sys import byteorder
from typing import NewType, cast

BlockHash = NewType("BlockHash", bytes)

_VERSION = b"roundhouse block hash 1"
_TOKEN_BYTES = 4


def root_hash(*, cache_salt: str | None = None, lora_name: str | None = None) -> BlockHash:
    """The parent of a request's first block."""
    digest = sha256(_VERSION)
    for tag, salt in ((b"cache_salt", cache_salt), (b"lora", lora_name)):
        if salt is not None:
            raw = salt.encode("utf-8", "surrogatepass")
            digest.update(b"%b:%d:%b;" % (tag, len(raw), raw))
    return BlockHash(digest.digest())


def hash_block(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """The hash of one full block: its parent's hash, then its token ids as little-endian 32-bit numbers."""
    return BlockHash(sha256(parent + _little_endian(token_ids)).digest())


def extend_chain(chain: list[BlockHash], root: BlockHash, token_ids: Sequence[int], block_size: int) -> None:
    """Appends to `chain`, which covers a prefix of `token_ids`, the hashes of the full blocks that it lacks."""
    parent: bytes = chain[-1] if chain else root
    num_covered = len(chain) * block_size
    num_full = len(token_ids) - len(token_ids) % block_size
    # One conversion and one cast for all blocks: half the cost of `hash_block` for each.
    raw = _little_endian(token_ids[num_covered:num_full])
    size = block_size * _TOKEN_BYTES
    hashes: list[bytes] = []
    for start in range(0, len(raw), size):
        parent = sha256(parent + raw[start : start + size]).digest()
        hashes.append(parent)
    chain += cast("list[BlockHash]", hashes)


def _little_endian(token_ids: Sequence[int]) -> bytes:
    ids = array("I", token_ids)
    if byteorder == "big":
        ids.byteswap()
    return ids.tobytes()
