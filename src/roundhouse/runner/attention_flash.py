"""Attention on CUDA by torch's own variable-length kernels, which read the KV blocks where they lie.

Which kernel that is (cuDNN, FlashAttention) torch decides; whether there is one at all for this device, dtype and block
size is found out by running it once on a few tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from roundhouse.models.attention import LayerOptions, StepAttention
from roundhouse.models.inspection import LayerShape
from roundhouse.runner.attention import AttentionMetadata
from roundhouse.runner.kv_store import KVStore


class FlashBackend:
    name = "flash"

    def __init__(self, store: KVStore, *, device: torch.device) -> None:
        self._store = store
        self._device = device

    def begin(self, metadata: AttentionMetadata) -> StepAttention:
        return FlashStep(self._store, make_arguments(metadata, self._device))


@dataclass(frozen=True, slots=True)
class VarlenArguments:
    """Arguments of `torch.nn.attention.varlen.varlen_attn` that all layers of a step share.

    query_starts: int32 [n + 1]. seq_lens: int32 [n]. block_tables: int32 [n, width]. slots: int64 [T].
    """

    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slots: torch.Tensor
    max_query_len: int
    max_seq_len: int


def make_arguments(metadata: AttentionMetadata, device: torch.device) -> VarlenArguments:
    def int32(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(device)

    return VarlenArguments(
        query_starts=int32(metadata.query_starts),
        seq_lens=int32(metadata.seq_lens),
        block_tables=int32(metadata.block_tables),
        slots=torch.from_numpy(metadata.slots).to(device),
        max_query_len=int(metadata.query_lens.max()),
        max_seq_len=int(metadata.seq_lens.max()),
    )


def window_size(window: int | None) -> tuple[int, int]:
    """Keys to the left and right of a query's own: the kernels' way to say causal, with or without a window."""
    return (-1, 0) if window is None else (window - 1, 0)


class FlashStep:
    def __init__(self, store: KVStore, arguments: VarlenArguments) -> None:
        self._store = store
        self._arguments = arguments

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: LayerOptions
    ) -> torch.Tensor:
        from torch.nn.attention.varlen import varlen_attn

        shared = self._arguments
        self._store.write(layer, shared.slots, key, value)
        out = varlen_attn(
            query.contiguous(),
            self._store.keys[layer],
            self._store.values[layer],
            shared.query_starts,
            None,
            shared.max_query_len,
            shared.max_seq_len,
            scale=options.scale,
            window_size=window_size(options.window),
            enable_gqa=True,
            seqused_k=shared.seq_lens,
            block_table=shared.block_tables,
        )
        assert isinstance(out, torch.Tensor)
        return out


def why_not_flash(layers: list[LayerShape], *, device: torch.device, dtype: torch.dtype, block_size: int) -> str | None:
    """None when these layers can be served by the kernels, else the reason, which is logged."""
    if device.type != "cuda":
        return f"the device is {device.type}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"the kernels compute in float16 and bfloat16, not in {dtype}"
    if any(layer.has_softcap or layer.has_sinks for layer in layers):
        return "the model uses softcap or sinks"
    return _trial_error(layers, device=device, dtype=dtype, block_size=block_size)


def _trial_error(layers: list[LayerShape], *, device: torch.device, dtype: torch.dtype, block_size: int) -> str | None:
    """Runs each distinct kind of layer once: a prompt of three tokens beside a decode row with a context."""
    slots = np.array([0, 1, 2, block_size + 1])
    metadata = AttentionMetadata(
        query_starts=np.array([0, 3, 4]),
        context_lens=np.array([0, 1]),
        block_tables=np.array([[0], [1]], dtype=np.int32),
        slots=slots,
        block_size=block_size,
    )
    for layer in dict.fromkeys(layers):
        store = KVStore([layer], num_blocks=2, block_size=block_size, dtype=dtype, device=device)
        query = torch.ones(4, layer.num_heads, layer.key_size, dtype=dtype, device=device)
        key = torch.ones(4, layer.num_kv_heads, layer.key_size, dtype=dtype, device=device)
        value = torch.ones(4, layer.num_kv_heads, layer.value_size, dtype=dtype, device=device)
        options = LayerOptions(scale=layer.key_size**-0.5, window=layer.window)
        try:
            step = FlashBackend(store, device=device).begin(metadata)
            step.attend(0, query, key, value, options)
            torch.cuda.synchronize(device)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            return f"torch has no paged kernel for this device and these layers: {error}"
    return None
