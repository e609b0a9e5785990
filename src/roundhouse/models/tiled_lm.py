"""A causal LM run tile by tile: every operation of the model sees one of two shapes, whatever the batch.

A tile goes through all layers before the next one begins. Attention looks back only, so a prompt in several tiles finds
in the KV cache what its earlier ones left there, just as in a prefill by chunks. Nothing of the model is replaced: each
family's own code runs, on rows that are filled up to the tile's height.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch.nn.functional import pad

from roundhouse.models.attention import StepAttention
from roundhouse.models.causal_lm import CausalLM
from roundhouse.models.tiles import tile_bounds, tile_height


@runtime_checkable
class TiledAttention(StepAttention, Protocol):
    """A step's attention in parts, one for each of `tile_bounds`.

    A part's `attend` is given the tile's whole height; what it returns for the filling is finite and read by nobody.
    """

    @property
    def tiles(self) -> Sequence[StepAttention]: ...


class TiledCausalLM:
    """As `CausalLM`, of which it is a wrapper. heights: of tiles, ascending; the last is `tiles.HIGH`."""

    def __init__(self, model: CausalLM, *, heights: Sequence[int]) -> None:
        self._model = model
        self._heights = heights
        self.vocab_size = model.vocab_size
        self.dtype = model.dtype
        self.device = model.device

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: StepAttention, logits_indices: torch.Tensor
    ) -> torch.Tensor:
        assert isinstance(attention, TiledAttention), "a tiled model needs attention by tiles"
        parts: list[torch.Tensor] = []
        for (start, end), tile in zip(tile_bounds(len(token_ids)), attention.tiles, strict=True):
            missing = tile_height(end - start, self._heights) - (end - start)
            hidden = self._model.hidden_states(
                pad(token_ids[start:end], (0, missing)), pad(positions[start:end], (0, missing)), tile
            )
            parts.append(hidden[: end - start])
        self._model.keep_hidden_states(torch.cat(parts))
        return self.logits_of_last_forward(logits_indices)

    def logits_of_last_forward(self, indices: torch.Tensor) -> torch.Tensor:
        if len(indices) == 0:
            return torch.empty(0, self.vocab_size, dtype=self.dtype, device=self.device)
        parts: list[torch.Tensor] = []
        for start, end in tile_bounds(len(indices)):
            missing = tile_height(end - start, self._heights) - (end - start)
            logits = self._model.logits_of_last_forward(pad(indices[start:end], (0, missing)))
            parts.append(logits[: end - start])
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def forget_last_forward(self) -> None:
        self._model.forget_last_forward()
