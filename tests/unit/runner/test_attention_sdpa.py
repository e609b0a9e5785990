"""Against attention written out token by token, over every mixture of prompts, chunks and decode rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.models.attention import LayerOptions
from roundhouse.models.inspection import LayerShape
from roundhouse.runner.attention import AttentionMetadata
from roundhouse.runner.attention_sdpa import SdpaBackend, group_by_length
from roundhouse.runner.kv_store import KVStore

NUM_HEADS, NUM_KV_HEADS, KEY_SIZE, VALUE_SIZE, BLOCK_SIZE = 4, 2, 8, 6, 4
LAYER = LayerShape(NUM_KV_HEADS, KEY_SIZE, VALUE_SIZE, NUM_HEADS, window=None, has_softcap=False, has_sinks=False)
CPU = torch.device("cpu")


def attend_one(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, options: LayerOptions) -> torch.Tensor:
    """query [num_heads, size] of the last of the keys [L, num_kv_heads, size] → [num_heads, value_size]."""
    if options.window is not None:
        keys, values = keys[-options.window :], values[-options.window :]
    group = NUM_HEADS // NUM_KV_HEADS
    scores = torch.einsum("hd,lhd->hl", query, keys.repeat_interleave(group, dim=1)) * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    weights = scores.exp()
    mass = weights.sum(dim=1, keepdim=True)
    if options.sinks is not None:
        mass = mass + options.sinks.exp().unsqueeze(1)
    return torch.einsum("hl,lhd->hd", weights / mass, values.repeat_interleave(group, dim=1))


def metadata_of(requests: list[tuple[int, int]], block_tables: np.ndarray) -> AttentionMetadata:
    slots = [
        block_tables[place, position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for place, (context, count) in enumerate(requests)
        for position in range(context, context + count)
    ]
    return AttentionMetadata(
        query_starts=np.cumsum([0, *(count for _, count in requests)]),
        context_lens=np.array([context for context, _ in requests]),
        block_tables=block_tables,
        slots=np.array(slots, dtype=np.int64),
        block_size=BLOCK_SIZE,
    )


OPTIONS = {
    "plain": LayerOptions(scale=0.4),
    "window": LayerOptions(scale=0.4, window=5),
    "softcap": LayerOptions(scale=0.4, softcap=1.5),
    "sinks and window": LayerOptions(scale=0.4, window=3, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0])),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@settings(max_examples=30)
@given(requests=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 7)), min_size=1, max_size=6))
def test_any_step_equals_attention_written_out(options: LayerOptions, requests: list[tuple[int, int]]) -> None:
    random = torch.Generator().manual_seed(0)
    width = max(-(-(context + count) // BLOCK_SIZE) for context, count in requests)
    num_blocks = 1 + width * len(requests)
    block_tables = 1 + np.random.default_rng(0).permutation(num_blocks - 1).reshape(len(requests), width)
    store = KVStore([LAYER], num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=torch.float32, device=CPU)
    lengths = [context + count for context, count in requests]
    keys = [torch.randn(length, NUM_KV_HEADS, KEY_SIZE, generator=random) for length in lengths]
    values = [torch.randn(length, NUM_KV_HEADS, VALUE_SIZE, generator=random) for length in lengths]
    before = metadata_of([(0, context) for context, _ in requests], block_tables)
    contexts = [context for context, _ in requests]
    store.write(
        0,
        torch.from_numpy(before.slots),
        torch.cat([one[:context] for one, context in zip(keys, contexts, strict=True)]),
        torch.cat([one[:context] for one, context in zip(values, contexts, strict=True)]),
    )
    queries = [torch.randn(count, NUM_HEADS, KEY_SIZE, generator=random) for _, count in requests]

    step = SdpaBackend(store, dtype=torch.float32, device=CPU).begin(metadata_of(requests, block_tables))
    out = step.attend(
        0,
        torch.cat(queries),
        torch.cat([one[context:] for one, context in zip(keys, contexts, strict=True)]),
        torch.cat([one[context:] for one, context in zip(values, contexts, strict=True)]),
        options,
    )

    expected = [
        attend_one(query[place], one_keys[: context + place + 1], one_values[: context + place + 1], options)
        for query, one_keys, one_values, context in zip(queries, keys, values, contexts, strict=True)
        for place in range(len(query))
    ]
    torch.testing.assert_close(out, torch.stack(expected), rtol=0, atol=1e-5)


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=20), waste=st.integers(0, 100))
def test_groups_hold_every_row_once_and_waste_no_more_than_told(lengths: list[int], waste: int) -> None:
    groups = group_by_length(np.array(lengths), waste=waste)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))
    for group in groups:
        members = [lengths[place] for place in group]
        assert max(members) * len(members) - sum(members) <= waste


def test_rows_of_about_one_length_stay_together() -> None:
    assert [group.tolist() for group in group_by_length(np.array([5, 6, 5]), waste=2)] == [[0, 1, 2]]
    assert [group.tolist() for group in group_by_length(np.array([5, 90, 6]), waste=9)] == [[1], [0, 2]]


def test_the_explicit_path_in_slices_equals_itself_whole() -> None:
    """A prompt longer than a slice of queries."""
    count = 600
    random = torch.Generator().manual_seed(0)
    blocks = np.arange(count // BLOCK_SIZE)[None]
    store = KVStore([LAYER], num_blocks=count // BLOCK_SIZE, block_size=BLOCK_SIZE, dtype=torch.float32, device=CPU)
    query = torch.randn(count, NUM_HEADS, KEY_SIZE, generator=random)
    key = torch.randn(count, NUM_KV_HEADS, KEY_SIZE, generator=random)
    value = torch.randn(count, NUM_KV_HEADS, VALUE_SIZE, generator=random)
    backend = SdpaBackend(store, dtype=torch.float32, device=CPU)
    # A softcap this high changes nothing, so the fused path is the reference.
    capped = backend.begin(metadata_of([(0, count)], blocks)).attend(
        0, query, key, value, LayerOptions(0.3, softcap=1e6)
    )
    fused = backend.begin(metadata_of([(0, count)], blocks)).attend(0, query, key, value, LayerOptions(0.3))
    torch.testing.assert_close(capped, fused, rtol=0, atol=1e-4)
