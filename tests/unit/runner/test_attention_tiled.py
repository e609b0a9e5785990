"""Against attention written out token by token, and bit by bit against itself in other company."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.models.attention import LayerOptions
from roundhouse.models.inspection import LayerShape
from roundhouse.models.tiled_lm import TiledAttention
from roundhouse.models.tiles import tile_bounds, tile_height
from roundhouse.runner.attention import AttentionMetadata
from roundhouse.runner.attention_tiled import TiledBackend, TileShapes, cut_tile
from roundhouse.runner.kv_store import KVStore
from roundhouse.runner.tile_probe import PLAIN, QUICK

NUM_KV_HEADS, SIZE, BLOCK_SIZE, LONGEST = 2, 8, 4, 620
BLOCKS_EACH = LONGEST // BLOCK_SIZE


class Company:
    """Requests with fixed queries, keys and values for every position, so that any of them can be computed anyhow."""

    def __init__(self, count: int, num_heads: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        shape = LayerShape(NUM_KV_HEADS, SIZE, SIZE, num_heads, window=None, has_softcap=False, has_sinks=False)
        random = torch.Generator().manual_seed(0)
        self.queries = torch.randn(count, LONGEST, num_heads, SIZE, generator=random).to(dtype)
        self.keys, self.values = (
            torch.randn(count, LONGEST, NUM_KV_HEADS, SIZE, generator=random).to(dtype) for _ in range(2)
        )
        num_blocks = 1 + count * BLOCKS_EACH
        self.tables = 1 + np.random.default_rng(0).permutation(num_blocks - 1).reshape(count, -1).astype(np.int32)
        self.store = KVStore(
            [shape], num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=dtype, device=torch.device("cpu")
        )
        everything = self.metadata([(request, 0, LONGEST) for request in range(count)])
        self.store.write(0, torch.from_numpy(everything.slots), self.keys.flatten(0, 1), self.values.flatten(0, 1))

    def metadata(self, parts: list[tuple[int, int, int]]) -> AttentionMetadata:
        """A step of parts (request, context, count)."""
        slots = [
            self.tables[request, position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            for request, context, count in parts
            for position in range(context, context + count)
        ]
        width = max(-(-(context + count) // BLOCK_SIZE) for _, context, count in parts)
        return AttentionMetadata(
            query_starts=np.cumsum([0, *(count for _, _, count in parts)]),
            context_lens=np.array([context for _, context, _ in parts]),
            block_tables=self.tables[[request for request, _, _ in parts], :width],
            slots=np.array(slots, dtype=np.int64),
            block_size=BLOCK_SIZE,
        )

    def attend(
        self, parts: list[tuple[int, int, int]], options: LayerOptions, shapes: TileShapes = QUICK
    ) -> list[torch.Tensor]:
        """What the queries of each part get."""
        step = TiledBackend(self.store, shapes=shapes).begin(self.metadata(parts))
        assert isinstance(step, TiledAttention)
        query, key, value = (
            torch.cat([tensor[request, context : context + count] for request, context, count in parts])
            for tensor in (self.queries, self.keys, self.values)
        )
        out: list[torch.Tensor] = []
        for (start, end), tile in zip(tile_bounds(len(query)), step.tiles, strict=True):
            filling = (0, 0, 0, 0, 0, tile_height(end - start, shapes.heights) - (end - start))
            filled = (torch.nn.functional.pad(tensor[start:end], filling) for tensor in (query, key, value))
            out.append(tile.attend(0, *filled, options)[: end - start])
        return list(torch.cat(out).split([count for _, _, count in parts]))

    def written_out(self, request: int, position: int, options: LayerOptions) -> torch.Tensor:
        query = self.queries[request, position].float()
        first = 0 if options.window is None else max(0, position + 1 - options.window)
        group = query.shape[0] // NUM_KV_HEADS
        keys, values = (
            tensor[request, first : position + 1].float().repeat_interleave(group, dim=1)
            for tensor in (self.keys, self.values)
        )
        weights = (torch.einsum("hd,lhd->hl", query, keys) * options.scale).softmax(dim=1)
        return torch.einsum("hl,lhd->hd", weights, values)


OPTIONS = {"plain": LayerOptions(scale=0.4), "window": LayerOptions(scale=0.4, window=5)}
COMPANIES = {
    "3 heads to one": Company(40, 6, torch.float32),
    "bfloat16": Company(40, 6, torch.bfloat16),
    "more heads to one than rows in a part": Company(40, 70, torch.float32),
}
part = st.tuples(st.integers(0, 560), st.integers(1, 50))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@settings(max_examples=10)
@given(parts=st.lists(part, min_size=1, max_size=5))
def test_any_step_equals_attention_written_out(options: LayerOptions, parts: list[tuple[int, int]]) -> None:
    company = COMPANIES["3 heads to one"]
    step = [(request, context, count) for request, (context, count) in enumerate(parts)]
    for (request, context, count), out in zip(step, company.attend(step, options), strict=True):
        expected = [company.written_out(request, context + place, options) for place in range(count)]
        torch.testing.assert_close(out, torch.stack(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", COMPANIES)
@settings(max_examples=15)
@given(
    subject=part,
    before=st.lists(part, max_size=4),
    num_decoding=st.integers(0, 35),
    cut=st.integers(1, 49),
)
def test_a_query_has_the_same_bits_in_any_company_and_any_chunk(
    name: str,
    options: LayerOptions,
    subject: tuple[int, int],
    before: list[tuple[int, int]],
    num_decoding: int,
    cut: int,
) -> None:
    company = COMPANIES[name]
    context, count = subject
    one_by_one = [company.attend([(0, position, 1)], options, PLAIN)[0] for position in range(context, context + count)]
    others = [(1 + place, *other) for place, other in enumerate(before)]
    others += [(5 + place, 17 * place, 1) for place in range(num_decoding % 34)]
    cut = min(cut, count - 1)
    chunks = [(0, context, count)] if cut == 0 else [(0, context, cut), (0, context + cut, count - cut)]
    together = [company.attend([*others, chunk], options)[-1] for chunk in chunks]
    assert torch.equal(torch.cat(together), torch.cat(one_by_one))


def test_a_tile_is_a_step_whose_context_is_what_came_before() -> None:
    metadata = COMPANIES["3 heads to one"].metadata([(0, 10, 5), (1, 0, 40), (2, 7, 1)])
    tile = cut_tile(metadata, 32, 46)
    assert tile.query_starts.tolist() == [0, 13, 14]
    assert tile.context_lens.tolist() == [27, 7]
    assert tile.slots.tolist() == metadata.slots[32:].tolist()
    assert np.array_equal(tile.block_tables, metadata.block_tables[1:])
    assert cut_tile(metadata, 0, 5).context_lens.tolist() == [10]


@pytest.mark.parametrize(
    ("block_size", "wanted", "lengths"),
    [
        (16, [1, 64, 65, 300, 512, 513, 1025], [64, 64, 128, 512, 512, 1024, 1536]),
        (256, [1, 257, 513], [512, 512, 1024]),
        (1024, [1, 1024, 1025], [1024, 1024, 2048]),
    ],
)
def test_keys_of_a_call(block_size: int, wanted: list[int], lengths: list[int]) -> None:
    assert QUICK.num_keys(np.array(wanted), block_size).tolist() == lengths


@pytest.mark.parametrize(("wanted", "quick", "plain"), [(1, 8, 32), (9, 32, 32), (33, 64, 64), (96, 96, 96)])
def test_rows_of_a_call(wanted: int, quick: int, plain: int) -> None:
    assert (QUICK.num_rows(wanted), PLAIN.num_rows(wanted)) == (quick, plain)
