"""Random calls against a model that stores each block's content: what a hit promises must be what the block holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from roundhouse.kvcache.config import CacheConfig
from roundhouse.kvcache.manager import KVCacheManager
from roundhouse.protocol.block_hash import BlockHash, extend_chain, root_hash

BLOCK_SIZE = 2
token_lists = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class Tables(RuleBasedStateMachine):
    """Tokens of two values, so that prefixes collide all the time."""

    @initialize(num_blocks=st.integers(2, 12))
    def start(self, num_blocks: int) -> None:
        self.kv = KVCacheManager(CacheConfig(num_blocks=num_blocks, block_size=BLOCK_SIZE))
        self.tokens: dict[str, list[int]] = {}
        self.hashes: dict[str, list[BlockHash]] = {}
        self.content: dict[int, tuple[int, ...]] = {}
        """All tokens up to the block's end, by block id."""
        self.num_started = 0

    def write(self, request_id: str, first: int) -> None:
        tokens = self.tokens[request_id]
        for index, block_id in enumerate(self.kv.block_ids(request_id)):
            if index >= first:
                self.content[block_id] = tuple(tokens[: (index + 1) * BLOCK_SIZE])
        extend_chain(self.hashes[request_id], root_hash(), tokens, BLOCK_SIZE)
        self.kv.cache_blocks(request_id, self.hashes[request_id], len(tokens))

    @rule(tokens=token_lists)
    def admit(self, tokens: list[int]) -> None:
        request_id = str(self.num_started)
        hashes: list[BlockHash] = []
        extend_chain(hashes, root_hash(), tokens, BLOCK_SIZE)
        hits = self.kv.get_computed_blocks(hashes, len(tokens))
        assert len(hits) * BLOCK_SIZE < len(tokens)
        for index, block in enumerate(hits):
            assert self.content[block.block_id] == tuple(tokens[: (index + 1) * BLOCK_SIZE])
        num_free = self.kv.num_free_blocks
        if self.kv.allocate_slots(request_id, len(tokens), hits) is None:
            assert self.kv.num_free_blocks == num_free
            return
        self.num_started += 1
        self.tokens[request_id] = tokens
        self.hashes[request_id] = hashes
        self.write(request_id, first=len(hits))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), more=token_lists)
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.tokens)))
        tokens = self.tokens[request_id]
        if self.kv.allocate_slots(request_id, len(tokens) + len(more)) is not None:
            first = len(tokens) // BLOCK_SIZE
            self.tokens[request_id] = tokens + more
            self.write(request_id, first)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.tokens)))
        self.kv.free(request_id)
        del self.tokens[request_id], self.hashes[request_id]

    @rule()
    def reset(self) -> None:
        assert self.kv.reset_prefix_cache() == (not self.tokens)

    @invariant()
    def holds(self) -> None:
        self.kv.validate_state()
        for request_id, tokens in self.tokens.items():
            for index, block_id in enumerate(self.kv.block_ids(request_id)):
                assert self.content[block_id] == tuple(tokens[: (index + 1) * BLOCK_SIZE])


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=40)


@given(token_lists, st.integers(0, 9))
def test_a_chain_grown_in_steps_is_the_chain_made_at_once(tokens: list[int], cut: int) -> None:
    at_once: list[BlockHash] = []
    grown: list[BlockHash] = []
    extend_chain(at_once, root_hash(), tokens, BLOCK_SIZE)
    extend_chain(grown, root_hash(), tokens[:cut], BLOCK_SIZE)
    extend_chain(grown, root_hash(), tokens, BLOCK_SIZE)
    assert grown == at_once
