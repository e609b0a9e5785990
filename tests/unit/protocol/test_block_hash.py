from hypothesis import given
from hypothesis import strategies as st

from roundhouse.protocol.block_hash import BlockHash, extend_chain, hash_block, root_hash

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


def chain_of(token_ids: list[int], block_size: int, root: BlockHash) -> list[BlockHash]:
    chain: list[BlockHash] = []
    extend_chain(chain, root, token_ids, block_size)
    return chain


@given(TOKENS, TOKENS, st.integers(1, 8))
def test_a_chain_that_grows_is_the_chain_of_the_whole(first: list[int], more: list[int], block_size: int) -> None:
    grown = chain_of(first, block_size, root_hash())
    extend_chain(grown, root_hash(), first + more, block_size)
    assert grown == chain_of(first + more, block_size, root_hash())
    assert len(grown) == (len(first) + len(more)) // block_size


@given(TOKENS, TOKENS, st.integers(1, 8))
def test_chains_agree_exactly_on_the_blocks_of_the_common_prefix(a: list[int], b: list[int], block_size: int) -> None:
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    chains = (chain_of(tokens, block_size, root_hash()) for tokens in (a, b))
    same = [x == y for x, y in zip(*chains, strict=False)]
    assert same == [place < common // block_size for place in range(len(same))]


def test_salts_never_collide() -> None:
    roots = [
        root_hash(),
        root_hash(cache_salt=""),
        root_hash(cache_salt="a"),
        root_hash(lora_name="a"),
        root_hash(cache_salt="a", lora_name="a"),
        root_hash(cache_salt="a;lora:1:a"),
        root_hash(cache_salt="\ud800"),
    ]
    assert len(set(roots)) == len(roots)


def test_the_hash_is_the_same_on_every_machine() -> None:
    digest = "db31e0f5398911e9b559562ea687181ee15a510708d119c3f5599ebea0d3d6c5"
    assert hash_block(root_hash(), [1, 2, 70000]).hex() == digest
