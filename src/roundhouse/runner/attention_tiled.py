"""Attention of which every call has a fixed shape, so that a query's bits depend on its own keys alone.

A tile of the step (`models.tiles`) is attended to request by request: the heads that share a KV head, of all the
request's queries in the tile, are the rows of the call. Rows are filled up to 8 or to a multiple of 32, keys up to one
of `KEY_LENGTHS` or to a multiple of the last. The kernel takes keys in parts of 512 and each (request, KV head, 32
rows) in one thread, so hidden keys add exact zeros and neighbours take no part. `tile_probe` tries that out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import pad

from roundhouse.models.attention import LayerOptions, StepAttention
from roundhouse.models.tiles import HIGH, tile_bounds, tile_height
from roundhouse.runner.attention import AttentionMetadata
from roundhouse.runner.kv_store import KVStore

KEY_LENGTHS = (64, 128, 512)
"""128 is within what every matrix kernel met so far adds up in one go; 256 is not."""


@dataclass(frozen=True, slots=True)
class TileShapes:
    """heights: rows of a tile. key_lengths: keys of a call; longer ones are multiples of the last. Both ascend."""

    heights: tuple[int, ...]
    key_lengths: tuple[int, ...]

    def num_rows(self, wanted: int) -> int:
        """Rows of a call that holds `wanted`."""
        return -(-wanted // HIGH) * HIGH if wanted > HIGH else tile_height(wanted, self.heights)

    def num_keys(self, wanted: np.ndarray, block_size: int) -> np.ndarray:
        """Keys of a call that holds `wanted`, int64 [n], in whole blocks."""
        lengths = np.array([length for length in self.key_lengths if length % block_size == 0] or [block_size])
        fits = np.minimum(np.searchsorted(lengths, wanted), len(lengths) - 1)
        return np.where(wanted > lengths[-1], -(-wanted // lengths[-1]) * lengths[-1], lengths[fits])


class TiledBackend:
    name = "tiled"

    def __init__(self, store: KVStore, *, shapes: TileShapes) -> None:
        self._store = store
        self._shapes = shapes

    def begin(self, metadata: AttentionMetadata) -> StepAttention:
        bounds = tile_bounds(int(metadata.query_starts[-1]))
        return TiledStep([Tile(self._store, cut_tile(metadata, start, end), self._shapes) for start, end in bounds])


class TiledStep:
    """A `models.tiled_lm.TiledAttention`."""

    def __init__(self, tiles: Sequence[StepAttention]) -> None:
        self.tiles = tiles

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: LayerOptions
    ) -> torch.Tensor:
        raise AssertionError("a tiled step is attended to tile by tile")


def cut_tile(metadata: AttentionMetadata, start: int, end: int) -> AttentionMetadata:
    """The step's tokens from `start` to `end`, as a step of their own: what came before them is context."""
    first = int(np.searchsorted(metadata.query_starts, start, side="right")) - 1
    last = int(np.searchsorted(metadata.query_starts, end, side="left"))
    starts = np.clip(metadata.query_starts[first : last + 1], start, end)
    return AttentionMetadata(
        query_starts=starts - start,
        context_lens=metadata.context_lens[first:last] + starts[:-1] - metadata.query_starts[first:last],
        block_tables=metadata.block_tables[first:last],
        slots=metadata.slots[start:end],
        block_size=metadata.block_size,
    )


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """Requests with q queries each in the tile and L keys each in the call: B of them when q is 1, else one.

    tokens: where the queries stand in the tile, int64 [B × q]. blocks: int64 [B × L / block_size]. bias: added to the
    scores, [B × parts of a request, 1, rows of a part, L], 0 where a row sees a key and -inf elsewhere.
    """

    tokens: torch.Tensor
    num_requests: int
    blocks: torch.Tensor
    bias: torch.Tensor

    @property
    def num_parts(self) -> int:
        """Calls' worth of rows that each request has."""
        return self.bias.shape[0] // self.num_requests


class Tile:
    """The attention of one tile. Plans are made once for each window that a layer asks for."""

    def __init__(self, store: KVStore, metadata: AttentionMetadata, shapes: TileShapes) -> None:
        self._store = store
        self._metadata = metadata
        self._shapes = shapes
        self._slots = torch.from_numpy(metadata.slots)
        self._plans: dict[tuple[int | None, int], list[RowsPlan]] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: LayerOptions
    ) -> torch.Tensor:
        assert options.softcap is None and options.sinks is None
        count = len(self._slots)
        self._store.write(layer, self._slots, key[:count], value[:count])
        num_kv_heads = key.shape[1]
        out = query.new_zeros(query.shape[0], query.shape[1], value.shape[2])
        for plan in self._plans_for(options.window, query.shape[1] // num_kv_heads, query.dtype):
            keys = _gather(self._store.keys[layer], plan)
            values = _gather(self._store.values[layer], plan)
            rows = _to_rows(query[plan.tokens], plan, num_kv_heads)
            out[plan.tokens] = _from_rows(
                attend_rows(rows, keys, values, plan.bias, options.scale), plan, query.shape[1]
            )
        return out

    def _plans_for(self, window: int | None, group: int, dtype: torch.dtype) -> list[RowsPlan]:
        plans = self._plans.get((window, group))
        if plans is None:
            plans = self._plans[window, group] = self._make_plans(window, group, dtype)
        return plans

    def _make_plans(self, window: int | None, group: int, dtype: torch.dtype) -> list[RowsPlan]:
        metadata = self._metadata
        query_lens = metadata.query_lens
        num_keys = self._shapes.num_keys(metadata.seq_lens, metadata.block_size)
        is_single = query_lens == 1
        sets = [np.array([request]) for request in np.flatnonzero(~is_single)]
        sets += [np.flatnonzero(is_single & (num_keys == length)) for length in np.unique(num_keys[is_single])]
        return [self._plan(requests, int(num_keys[requests[0]]), window, group, dtype) for requests in sets]

    def _plan(
        self, requests: np.ndarray, num_keys: int, window: int | None, group: int, dtype: torch.dtype
    ) -> RowsPlan:
        metadata = self._metadata
        num_queries = int(metadata.query_lens[requests[0]])
        queries = np.arange(num_queries)
        tokens = (metadata.query_starts[requests][:, None] + queries).reshape(-1)
        positions = np.repeat(metadata.context_lens[requests][:, None] + queries, group, axis=1)
        num_rows = self._shapes.num_rows(num_queries * group)
        # The filling looks where the last row looks.
        positions = np.pad(positions, ((0, 0), (0, num_rows - positions.shape[1])), mode="edge")
        positions = positions.reshape(-1, min(num_rows, HIGH))
        keys = np.arange(num_keys)
        visible = keys <= positions[:, :, None]
        if window is not None:
            visible &= keys > positions[:, :, None] - window
        bias = torch.zeros(visible.shape, dtype=dtype).masked_fill_(torch.from_numpy(~visible), float("-inf"))
        # Block 0 belongs to nobody and is finite; the bias hides it.
        columns = np.arange(num_keys // metadata.block_size)
        width = metadata.block_tables.shape[1]
        blocks = metadata.block_tables[requests][:, np.minimum(columns, width - 1)].astype(np.int64)
        used = -(-metadata.seq_lens[requests] // metadata.block_size)
        blocks[columns >= used[:, None]] = 0
        return RowsPlan(
            torch.from_numpy(tokens), len(requests), torch.from_numpy(blocks.reshape(-1)), bias.unsqueeze(1)
        )


def attend_rows(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor, scale: float
) -> torch.Tensor:
    """rows [N, num_kv_heads, 8 or 32, size], keys and values [N, num_kv_heads, L, size], bias [N, 1, 8 or 32, L]."""
    num_parts = rows.shape[0]
    if num_parts * rows.shape[1] == 1:
        # One unit of work would run outside the threads' region, where the matrix library may use threads of its own.
        rows, keys, values, bias = (tensor.expand(2, -1, -1, -1) for tensor in (rows, keys, values, bias))
    out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(rows, keys, values, attn_mask=bias, scale=scale)
    return out[:num_parts]


def _gather(blocks: torch.Tensor, plan: RowsPlan) -> torch.Tensor:
    """[num_blocks, block_size, heads, size] → [B × parts of a request, heads, L, size]."""
    gathered = blocks.index_select(0, plan.blocks).view(plan.num_requests, -1, *blocks.shape[2:]).transpose(1, 2)
    return gathered.unsqueeze(1).expand(-1, plan.num_parts, -1, -1, -1).flatten(0, 1)


def _to_rows(query: torch.Tensor, plan: RowsPlan, num_kv_heads: int) -> torch.Tensor:
    """[B × q, num_heads, size] → [B × parts of a request, num_kv_heads, rows of a part, size]."""
    height = plan.bias.shape[2]
    by_head = query.view(plan.num_requests, -1, num_kv_heads, query.shape[1] // num_kv_heads, query.shape[2])
    rows = by_head.transpose(1, 2).flatten(2, 3)
    rows = pad(rows, (0, 0, 0, plan.num_parts * height - rows.shape[2]))
    return rows.unflatten(2, (plan.num_parts, height)).transpose(1, 2).flatten(0, 1)


def _from_rows(out: torch.Tensor, plan: RowsPlan, num_heads: int) -> torch.Tensor:
    """The inverse of `_to_rows`, without the filling."""
    num_queries = len(plan.tokens) // plan.num_requests
    group = num_heads // out.shape[1]
    rows = out.unflatten(0, (plan.num_requests, plan.num_parts)).transpose(1, 2).flatten(2, 3)
    rows = rows[:, :, : num_queries * group].unflatten(2, (num_queries, group))
    return rows.transpose(1, 2).reshape(len(plan.tokens), num_heads, -1)
