"""Attention in plain torch, on any device.

Requests with one query (decode) are batched: their blocks are gathered, padded to the longest of the group. A chunk
of a prompt is attended to alone; without context it needs no gather and no mask. Softcap and sinks, which torch's
fused attention does not know, take an explicit path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from roundhouse.models.attention import LayerOptions, StepAttention
from roundhouse.runner.attention import AttentionMetadata
from roundhouse.runner.kv_store import KVStore

GROUP_WASTE_TOKENS = 2048
"""Padding that a group of decode rows may hold before it is split: gathering that much costs about as much as one more
call of the kernel (measured on 2 cores, 3 KV heads of 64)."""

EXPLICIT_ROWS = 256
"""Queries at a time on the explicit path, which writes its scores out."""


class SdpaBackend:
    name = "sdpa"

    def __init__(self, store: KVStore, *, dtype: torch.dtype, device: torch.device) -> None:
        self._store = store
        self._dtype = dtype
        self._device = device

    def begin(self, metadata: AttentionMetadata) -> StepAttention:
        return SdpaStep(self._store, metadata, dtype=self._dtype, device=self._device)


@dataclass(frozen=True, slots=True)
class GatherPlan:
    """Requests that are attended to together: B requests, q queries each, L gathered tokens each.

    tokens: where their queries stand in the step. blocks: int64 [B × L / block_size]. bias: added to the scores,
    [B, 1, q, L], 0 where a query sees a key and -inf elsewhere. causal: no context and no window, so no bias is needed,
    and the step's own keys are all the keys there are.
    """

    tokens: slice | torch.Tensor
    num_requests: int
    blocks: torch.Tensor | None
    bias: torch.Tensor | None
    causal: bool


class SdpaStep:
    """One step. Plans are made once for each window that a layer asks for: most models have one or two."""

    def __init__(
        self, store: KVStore, metadata: AttentionMetadata, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._dtype = dtype
        self._device = device
        self._slots = torch.from_numpy(metadata.slots).to(device)
        self._plans: dict[int | None, list[GatherPlan]] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: LayerOptions
    ) -> torch.Tensor:
        self._store.write(layer, self._slots, key, value)
        plans = self.plans(options.window)
        if len(plans) == 1 and isinstance(plans[0].tokens, slice):
            return self._attend(layer, plans[0], query, key, value, options)
        out = query.new_empty(query.shape[0], query.shape[1], value.shape[2])
        for plan in plans:
            tokens = plan.tokens
            out[tokens] = self._attend(layer, plan, query[tokens], key[tokens], value[tokens], options)
        return out

    def plans(self, window: int | None) -> list[GatherPlan]:
        """How the requests are attended to in layers of this window; together they are all of the step."""
        plans = self._plans.get(window)
        if plans is None:
            plans = self._plans[window] = self._make_plans(window)
        return plans

    def _attend(
        self,
        layer: int,
        plan: GatherPlan,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: LayerOptions,
    ) -> torch.Tensor:
        """query [B × q, num_heads, size] → [B × q, num_heads, value_size]."""
        num_requests = plan.num_requests
        if plan.blocks is None:
            keys, values = key.unsqueeze(0), value.unsqueeze(0)
        else:
            keys = _gather(self._store.keys[layer], plan.blocks, num_requests)
            values = _gather(self._store.values[layer], plan.blocks, num_requests)
        queries = query.unflatten(0, (num_requests, -1)).transpose(1, 2)
        attend = _attend_fused if options.softcap is None and options.sinks is None else _attend_explicitly
        out = attend(queries, keys.transpose(1, 2), values.transpose(1, 2), plan, options)
        return out.transpose(1, 2).flatten(0, 1)

    def _make_plans(self, window: int | None) -> list[GatherPlan]:
        metadata = self._metadata
        query_lens = metadata.query_lens
        is_decode = (query_lens == 1) & (metadata.context_lens > 0)
        plans = [self._plan_chunk(int(request), window) for request in np.flatnonzero(~is_decode)]
        decode = np.flatnonzero(is_decode)
        if len(decode) == 0:
            return plans
        first_blocks = _first_visible(metadata.context_lens, window) // metadata.block_size
        num_blocks = -(-metadata.seq_lens // metadata.block_size) - first_blocks
        for group in group_by_length(num_blocks[decode], waste=GROUP_WASTE_TOKENS // metadata.block_size):
            plans.append(self._plan_decode(decode[group], first_blocks, num_blocks, window))
        return plans

    def _plan_chunk(self, request: int, window: int | None) -> GatherPlan:
        metadata = self._metadata
        start, end = (int(bound) for bound in metadata.query_starts[request : request + 2])
        context = int(metadata.context_lens[request])
        if context == 0 and (window is None or end - start <= window):
            return GatherPlan(slice(start, end), 1, blocks=None, bias=None, causal=True)
        positions = np.arange(context, context + end - start)
        first_block = int(_first_visible(positions[:1], window)[0]) // metadata.block_size
        last_block = -(-(context + end - start) // metadata.block_size)
        blocks = metadata.block_tables[request, first_block:last_block]
        keys = np.arange(first_block * metadata.block_size, last_block * metadata.block_size)
        bias = self._bias(positions[None, :, None], keys[None, None, :], window)
        return GatherPlan(slice(start, end), 1, blocks=self._block_index(blocks), bias=bias, causal=False)

    def _plan_decode(
        self, group: np.ndarray, first_blocks: np.ndarray, num_blocks: np.ndarray, window: int | None
    ) -> GatherPlan:
        metadata = self._metadata
        columns = first_blocks[group][:, None] + np.arange(int(num_blocks[group].max()))
        # A short row's padding repeats the last column of the table; the bias hides it.
        last_column = metadata.block_tables.shape[1] - 1
        blocks = metadata.block_tables[group[:, None], np.minimum(columns, last_column)]
        keys = (columns[:, :, None] * metadata.block_size + np.arange(metadata.block_size)).reshape(len(group), -1)
        bias = self._bias(metadata.context_lens[group][:, None, None], keys[:, None, :], window)
        tokens = metadata.query_starts[group]
        in_order = len(tokens) == len(metadata.slots) and bool((tokens == np.arange(len(tokens))).all())
        return GatherPlan(
            slice(0, len(tokens)) if in_order else torch.from_numpy(tokens).to(self._device),
            len(group),
            blocks=self._block_index(blocks),
            bias=bias,
            causal=False,
        )

    def _block_index(self, blocks: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(blocks.astype(np.int64).reshape(-1)).to(self._device)

    def _bias(self, queries: np.ndarray, keys: np.ndarray, window: int | None) -> torch.Tensor:
        """[B, 1, q, L] from positions of queries [B, q, 1] and keys [B, 1, L]."""
        visible = keys <= queries
        if window is not None:
            visible &= keys > queries - window
        bias = torch.zeros(visible.shape, dtype=self._dtype, device=self._device)
        return bias.masked_fill_(torch.from_numpy(~visible).to(self._device), float("-inf")).unsqueeze(1)


def group_by_length(lengths: np.ndarray, *, waste: int) -> list[np.ndarray]:
    """Indices into `lengths` in groups, longest first: in none are more than `waste` places of padding, unless it has
    one member."""
    if (lengths.max() - lengths).sum() <= waste:
        return [np.arange(len(lengths))]
    order = np.argsort(-lengths, kind="stable")
    groups: list[np.ndarray] = []
    begin = 0
    padding = np.int64(0)
    for place, length in enumerate(lengths[order]):
        padding += lengths[order[begin]] - length
        if padding > waste:
            groups.append(np.sort(order[begin:place]))
            begin, padding = place, np.int64(0)
    groups.append(np.sort(order[begin:]))
    return groups


def _gather(blocks: torch.Tensor, index: torch.Tensor, num_requests: int) -> torch.Tensor:
    """[num_blocks, block_size, heads, size] → [num_requests, L, heads, size]."""
    return blocks.index_select(0, index).view(num_requests, -1, *blocks.shape[2:])


def _first_visible(positions: np.ndarray, window: int | None) -> np.ndarray:
    """The first key that a query at each of `positions` sees."""
    return np.zeros_like(positions) if window is None else np.maximum(positions - window + 1, 0)


def _attend_fused(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: GatherPlan, options: LayerOptions
) -> torch.Tensor:
    """query [B, num_heads, q, size], keys and values [B, num_kv_heads, L, size] → [B, num_heads, q, value_size]."""
    if plan.causal or query.shape[2] > 1:
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=plan.bias, is_causal=plan.causal, scale=options.scale, enable_gqa=True
        )
    # One query a head: the heads that share a KV head become the queries of it, and nothing is repeated.
    grouped = query.reshape(query.shape[0], keys.shape[1], -1, query.shape[3])
    out = scaled_dot_product_attention(grouped, keys, values, attn_mask=plan.bias, scale=options.scale)
    return out.reshape(query.shape[0], query.shape[1], 1, values.shape[3])


def _attend_explicitly(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: GatherPlan, options: LayerOptions
) -> torch.Tensor:
    """As `_attend_fused`, with softcap and sinks; a slice of the queries at a time bounds the memory for scores."""
    num_groups = query.shape[1] // keys.shape[1]
    keys = keys.repeat_interleave(num_groups, dim=1)
    values = values.repeat_interleave(num_groups, dim=1)
    parts: list[torch.Tensor] = []
    for start in range(0, query.shape[2], EXPLICIT_ROWS):
        rows = slice(start, min(start + EXPLICIT_ROWS, query.shape[2]))
        scores = torch.matmul(query[:, :, rows], keys.transpose(2, 3)).float() * options.scale
        if options.softcap is not None:
            scores = torch.tanh(scores / options.softcap) * options.softcap
        if plan.bias is not None:
            scores = scores + plan.bias[:, :, rows]
        elif plan.causal:
            hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(1 + start)
            scores = scores.masked_fill(hidden, float("-inf"))
        if options.sinks is not None:
            sinks = options.sinks.float().reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
            weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        parts.append(torch.matmul(weights.to(values.dtype), values))
    return torch.cat(parts, dim=2)
