"""What the start of a deterministic engine tries out: that this machine's kernels give a row the same bits everywhere.

Matrix kernels differ by CPU, and none of them promises anything. So the shapes that save work (`QUICK`) are compared
with the plain ones before they are used, and a machine on which even those fail is refused. The trial's bits are part
of the engine's kernel path: two engines go on with each other's streams only where they agree on all of them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from itertools import product

import numpy as np
import torch

from roundhouse.models.causal_lm import CausalLM
from roundhouse.models.inspection import LayerShape
from roundhouse.models.tiled_lm import TiledCausalLM
from roundhouse.models.tiles import HIGH, LOW
from roundhouse.protocol.errors import ConfigError
from roundhouse.runner.attention import AttentionMetadata
from roundhouse.runner.attention_tiled import KEY_LENGTHS, TiledBackend, TileShapes, attend_rows
from roundhouse.runner.kv_store import KVStore

logger = logging.getLogger(__name__)

PLAIN = TileShapes(heights=(HIGH,), key_lengths=(KEY_LENGTHS[-1],))
QUICK = TileShapes(heights=(LOW, HIGH), key_lengths=KEY_LENGTHS)
_CHUNKS = (5, 1, 8, 2, 7, 9)
"""How a prompt of 32 tokens is computed a second time."""

_CALLS = 16
"""Of 32 rows: in bfloat16 only one row in hundreds shows that its sum was made in another order."""


@torch.inference_mode()
def choose_shapes(model: CausalLM, store: KVStore) -> tuple[TileShapes, str]:
    """(the quickest shapes that keep every bit, the digest of the trial). Writes to the first blocks of `store`.

    Raises `ConfigError` when no shapes do.
    """
    trial = _Trial(model, store)
    expected = trial.prompt(PLAIN, (trial.num_tokens,))
    digest = hashlib.sha256(expected.view(torch.uint8).numpy().tobytes()).hexdigest()
    for heights, lengths in product((QUICK.heights, PLAIN.heights), (QUICK.key_lengths, PLAIN.key_lengths)):
        shapes = TileShapes(heights, lengths)
        if calls_agree(model.layers, model.dtype, shapes) and trial.keeps_bits(shapes, expected):
            return shapes, digest
        logger.info("tiles of %s rows with %s keys do not keep a row's bits on this machine", heights, lengths)
    raise ConfigError(
        "deterministic execution: this machine's kernels give a row other bits in another place; "
        "fewer --threads or another --dtype may help"
    )


class _Trial:
    """Runs the model over a prompt in the first blocks of a store."""

    def __init__(self, model: CausalLM, store: KVStore) -> None:
        self._model = model
        self._store = store
        self.num_tokens = min(HIGH, model.max_model_len, store.num_blocks * store.block_size)

    def keeps_bits(self, shapes: TileShapes, expected: torch.Tensor) -> bool:
        """Whether one token has the same logits in every row of each height, and a prompt the `expected` ones in
        chunks."""
        alone = self._same_token(PLAIN, 1)
        return all(
            torch.equal(self._same_token(shapes, height), alone.expand(height, -1)) for height in shapes.heights
        ) and torch.equal(self.prompt(shapes, _CHUNKS), expected)

    def prompt(self, shapes: TileShapes, chunks: tuple[int, ...]) -> torch.Tensor:
        """The logits of every token, computed in these chunks."""
        parts: list[torch.Tensor] = []
        for start, end in self._bounds(chunks):
            positions = np.arange(start, end)
            metadata = AttentionMetadata(
                query_starts=np.array([0, end - start]),
                context_lens=np.array([start]),
                block_tables=np.arange(-(-end // self._store.block_size), dtype=np.int32)[None],
                slots=positions,
                block_size=self._store.block_size,
            )
            parts.append(self._logits(shapes, (positions * 7 + 1) % self._model.vocab_size, positions, metadata))
        return torch.cat(parts)

    def _bounds(self, chunks: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        start = 0
        for chunk in chunks:
            end = min(start + chunk, self.num_tokens)
            if end > start:
                yield start, end
            start = end

    def _same_token(self, shapes: TileShapes, count: int) -> torch.Tensor:
        """The logits of `count` requests of the same single token; they share a slot, for they keep the same there."""
        zeros = np.zeros(count, dtype=np.int64)
        metadata = AttentionMetadata(
            query_starts=np.arange(count + 1),
            context_lens=zeros,
            block_tables=np.zeros((count, 1), dtype=np.int32),
            slots=zeros,
            block_size=self._store.block_size,
        )
        return self._logits(shapes, zeros + 1, zeros, metadata)

    def _logits(
        self, shapes: TileShapes, token_ids: np.ndarray, positions: np.ndarray, metadata: AttentionMetadata
    ) -> torch.Tensor:
        model = TiledCausalLM(self._model, heights=shapes.heights)
        attention = TiledBackend(self._store, shapes=shapes).begin(metadata)
        return model.forward(
            torch.from_numpy(token_ids), torch.from_numpy(positions), attention, torch.arange(len(token_ids))
        )


def calls_agree(layers: list[LayerShape], dtype: torch.dtype, shapes: TileShapes) -> bool:
    """Whether attention calls of each height with each number of keys, and with two parts of them, agree bit by bit."""
    random = torch.Generator().manual_seed(0)
    plain = PLAIN.key_lengths[-1]
    for heads, size in sorted({(layer.num_kv_heads, layer.key_size) for layer in layers}):
        rows = torch.randn(_CALLS, heads, HIGH, size, generator=random).to(dtype)
        keys, values = (torch.randn(_CALLS, heads, 2 * plain, size, generator=random).to(dtype) for _ in range(2))
        for length, height in product((*shapes.key_lengths, 2 * plain), shapes.heights):
            # Every row sees another number of keys, up to all of them.
            seen = torch.linspace(1, min(length, plain), height).long()
            bias = torch.zeros(HIGH, 2 * plain, dtype=dtype)
            bias[:height].masked_fill_(torch.arange(2 * plain) >= seen[:, None], float("-inf"))
            bias = bias.expand(_CALLS, 1, -1, -1)
            expected, found = (
                attend_rows(
                    rows[:, :, :high], keys[:, :, :count], values[:, :, :count], bias[:, :, :high, :count], size**-0.5
                )
                for high, count in ((HIGH, plain), (height, length))
            )
            if not torch.equal(found, expected[:, :, :height]):
                return False
    return True
