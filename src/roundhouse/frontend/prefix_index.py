"""`PrefixIndex`: which engine probably has which blocks of prompts in its KV cache.

Nobody tells a frontend what an engine caches. It knows what it sent where and what came back, and the engine keeps that
as long as it has room: so the index is a guess that is right often and harmless when it is wrong, for then a prompt is
computed as if no engine had known it. It forgets what it saw the longest ago, and all of an engine that is lost. It
holds no tokens, only their hashes, which are the KV cache's own: salts and adapters that may not share blocks do not
share hashes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from roundhouse.protocol.block_hash import BlockHash, extend_chain, root_hash
from roundhouse.protocol.identity import SessionId
from roundhouse.protocol.messages import EngineCoreRequest

MAX_HASHED_BLOCKS = 1024
"""Of one prompt, from its start: 16,384 tokens in blocks of 16. A hash costs 0.6 µs, so the event loop is held for less
than a millisecond by the longest prompt. Two prompts that differ only behind that are one to the balancer: it finds
their common part, and spreads them by load."""

MAX_ENTRIES = 2**18
"""4 million tokens in blocks of 16. An entry takes 180 bytes, all of them 45 MiB."""

MAX_STALE_BITS = 64
"""Engines that were lost since their bits were last taken out of all entries, which costs one pass over them."""

_GOES_ON = 1
"""Bit of a block behind which a prompt had another one."""

_PARTS = 2
"""Bit of a block behind which prompts had different ones."""


class PromptHashes:
    """The block hashes of one request, made when they are first asked for: engines may have different block sizes."""

    def __init__(self, request: EngineCoreRequest) -> None:
        self._request = request
        self._hashes: dict[int, list[BlockHash]] = {}

    def of(self, block_size: int) -> list[BlockHash]:
        """Those of its prompt's full blocks, at most `MAX_HASHED_BLOCKS`, equal to those that the engine gives them."""
        hashes = self._hashes.get(block_size)
        if hashes is None:
            hashes = self._hashes[block_size] = []
            self._extend(hashes, self._request.prompt_token_ids, block_size)
        return hashes

    def with_outputs(self, block_size: int, output_token_ids: list[int]) -> list[BlockHash]:
        """The same of prompt and outputs together."""
        hashes = list(self.of(block_size))
        if len(hashes) < MAX_HASHED_BLOCKS:
            self._extend(hashes, self._request.prompt_token_ids + output_token_ids, block_size)
        return hashes

    def _extend(self, hashes: list[BlockHash], token_ids: list[int], block_size: int) -> None:
        root = root_hash(cache_salt=self._request.cache_salt, lora_name=self._request.lora_name)
        extend_chain(hashes, root, token_ids[: MAX_HASHED_BLOCKS * block_size], block_size)


class KnownPrefix(NamedTuple):
    """num_cached: blocks from the start that each engine asked about probably has, without a gap, in their order.

    anchor: the first block behind the last place where prompts are known to part, such as the end of a system prompt.
    It stays the same as a conversation grows, and frontends that know the same system prompts find the same one. None
    when the prompt ends before it.
    """

    num_cached: list[int]
    anchor: BlockHash | None


class PrefixIndex:
    """Block hash → the engines that it was sent to, as bits of one number, the latest last.

    A prompt's first blocks are always later than those behind them, so a prefix loses its end before its start.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[BlockHash, int] = OrderedDict()
        self._bits: dict[SessionId, int] = {}
        self._stale_bits = 0

    def __len__(self) -> int:
        """Entries; never more than `max_entries`."""
        return len(self._entries)

    def record(self, session_id: SessionId, hashes: Sequence[BlockHash]) -> None:
        """A prompt with these blocks was sent there. O(blocks)."""
        self._note_parting(hashes)
        bits = self._bits.get(session_id) or self._new_bit(session_id)
        entries = self._entries
        for block_hash in reversed(hashes):
            entries[block_hash] = entries.get(block_hash, 0) | bits
            entries.move_to_end(block_hash)
            bits |= _GOES_ON
        while len(entries) > self._max_entries:
            entries.popitem(last=False)

    def find(self, hashes: Sequence[BlockHash], session_ids: Iterable[SessionId]) -> KnownPrefix:
        """O(blocks + engines)."""
        bits = [self._bits.get(session_id, 0) for session_id in session_ids]
        still = 0
        for bit in bits:
            still |= bit
        num_cached = {0: 0}
        num_known = num_common = 0
        for block_hash in hashes:
            entry = self._entries.get(block_hash, 0)
            if not entry:
                break
            ended = still & ~entry
            if ended:
                still ^= ended
                _set_all(num_cached, ended, num_known)
            num_known += 1
            if entry & _PARTS:
                num_common = num_known
        _set_all(num_cached, still, num_known)
        anchor = hashes[num_common] if num_common < len(hashes) else None
        return KnownPrefix([num_cached[bit] for bit in bits], anchor)

    def forget(self, session_id: SessionId) -> None:
        """That engine is lost, with all that it had."""
        self._stale_bits |= self._bits.pop(session_id, 0)

    def _note_parting(self, hashes: Sequence[BlockHash]) -> None:
        """Where a known prompt goes on in another way than the one that is being recorded."""
        last = None
        for block_hash in hashes:
            if block_hash not in self._entries:
                if last is not None and self._entries[last] & _GOES_ON:
                    self._entries[last] |= _PARTS
                return
            last = block_hash

    def _new_bit(self, session_id: SessionId) -> int:
        """The lowest that nobody has; one that is stale still stands in entries."""
        if self._stale_bits.bit_count() >= MAX_STALE_BITS:
            self._drop_stale_bits()
        taken = self._stale_bits | _GOES_ON | _PARTS
        for bit in self._bits.values():
            taken |= bit
        bit = self._bits[session_id] = ~taken & (taken + 1)
        return bit

    def _drop_stale_bits(self) -> None:
        kept = ((block_hash, bits & ~self._stale_bits) for block_hash, bits in self._entries.items())
        self._entries = OrderedDict((block_hash, bits) for block_hash, bits in kept if bits & ~(_GOES_ON | _PARTS))
        self._stale_bits = 0


def _set_all(values: dict[int, int], bits: int, value: int) -> None:
    while bits:
        lowest = bits & -bits
        values[lowest] = value
        bits ^= lowest
