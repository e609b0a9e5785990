"""The tensors that hold keys and values, and what they cost."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch

from roundhouse.models.inspection import LayerShape


@dataclass(frozen=True, slots=True)
class KVFacts:
    """What the KV cache's size follows from.

    num_kv_heads, head_size: of the first layer; families whose layers differ are counted right in `bytes_per_block`.
    bytes_per_block: of keys and values of all layers together.
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    dtype_bytes: int
    block_size: int
    bytes_per_block: int


def kv_facts(layers: list[LayerShape], dtype: torch.dtype, block_size: int) -> KVFacts:
    per_token = sum(layer.num_kv_heads * (layer.key_size + layer.value_size) for layer in layers)
    return KVFacts(
        num_layers=len(layers),
        num_kv_heads=layers[0].num_kv_heads,
        head_size=layers[0].key_size,
        dtype_bytes=dtype.itemsize,
        block_size=block_size,
        bytes_per_block=per_token * dtype.itemsize * block_size,
    )


class KVStore:
    """keys, values: for each layer [num_blocks, block_size, num_kv_heads, key_size or value_size].

    Zeroed, because attention reads padding too: a masked weight of 0 times what is left of NaN would be NaN.
    """

    def __init__(
        self, layers: list[LayerShape], *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size

        def zeros(num_heads: int, size: int) -> torch.Tensor:
            return _zeros((num_blocks, block_size, num_heads, size), dtype, device)

        self.keys = [zeros(layer.num_kv_heads, layer.key_size) for layer in layers]
        self.values = [zeros(layer.num_kv_heads, layer.value_size) for layer in layers]

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Keeps key, value [T, num_kv_heads, size] at `slots`, int64 [T]."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, key)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, value)

    def clear_not_finite(self, block_ids: Iterable[int]) -> None:
        """Zeroes those of the blocks that hold NaN or infinity, so that whoever gets them next meets none of it."""
        index = torch.tensor(list(block_ids), dtype=torch.long, device=self.keys[0].device)
        for tensor in (*self.keys, *self.values):
            blocks = tensor.index_select(0, index)
            finite = blocks.flatten(1).isfinite().all(dim=1)
            tensor.index_fill_(0, index[~finite], 0)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros. On CPU the kernel's own zero pages: memory is taken as blocks are first used, and starting takes no time
    (`torch.zeros` writes it all: 2 s and the whole 4 GiB resident).
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, prod(shape) * dtype.itemsize), dtype=dtype).view(shape)
