"""All but the kernel runs on CPU; the kernel itself is compared with the SDPA backend where there is a GPU."""

import numpy as np
import pytest
import torch

from roundhouse.models.attention import LayerOptions
from roundhouse.models.inspection import LayerShape
from roundhouse.runner.attention import AttentionMetadata
from roundhouse.runner.attention_flash import FlashBackend, make_arguments, why_not_flash, window_size
from roundhouse.runner.attention_sdpa import SdpaBackend
from roundhouse.runner.kv_store import KVStore

CPU = torch.device("cpu")
LAYER = LayerShape(2, 64, 64, 4, window=None, has_softcap=False, has_sinks=False)
BLOCK_SIZE = 16


def metadata() -> AttentionMetadata:
    """A prompt of 20 tokens, a chunk of 3 behind 17, a decode row behind 40."""
    block_tables = np.array([[4, 2, 0], [1, 5, 0], [3, 6, 7]], dtype=np.int32)
    positions = [(0, place) for place in range(20)] + [(1, 17), (1, 18), (1, 19), (2, 40)]
    slots = [block_tables[row, place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE for row, place in positions]
    return AttentionMetadata(
        query_starts=np.array([0, 20, 23, 24]),
        context_lens=np.array([0, 17, 40]),
        block_tables=block_tables,
        slots=np.array(slots, dtype=np.int64),
        block_size=BLOCK_SIZE,
    )


def test_the_kernels_arguments() -> None:
    arguments = make_arguments(metadata(), CPU)
    assert arguments.query_starts.tolist() == [0, 20, 23, 24]
    assert arguments.seq_lens.tolist() == [20, 20, 41]
    assert arguments.block_tables.tolist() == [[4, 2, 0], [1, 5, 0], [3, 6, 7]]
    assert arguments.slots.tolist()[-2:] == [5 * 16 + 3, 7 * 16 + 8]
    assert (arguments.max_query_len, arguments.max_seq_len) == (20, 41)
    int32, int64 = torch.int32, torch.int64
    tensors = (arguments.query_starts, arguments.seq_lens, arguments.block_tables, arguments.slots)
    assert [tensor.dtype for tensor in tensors] == [int32, int32, int32, int64]


def test_a_window_counts_the_query_itself() -> None:
    assert [window_size(None), window_size(1), window_size(4096)] == [(-1, 0), (0, 0), (4095, 0)]


def test_reasons_against_the_kernels() -> None:
    cuda = torch.device("cuda")
    capped = LayerShape(2, 64, 64, 4, window=None, has_softcap=True, has_sinks=False)
    assert why_not_flash([LAYER], device=CPU, dtype=torch.bfloat16, block_size=16) == "the device is cpu"
    reason = why_not_flash([LAYER], device=cuda, dtype=torch.float32, block_size=16)
    assert reason == "the kernels compute in float16 and bfloat16, not in torch.float32"
    reason = why_not_flash([LAYER, capped], device=cuda, dtype=torch.bfloat16, block_size=16)
    assert reason == "the model uses softcap or sinks"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("window", [None, 8])
def test_the_kernel_equals_the_sdpa_backend(window: int | None) -> None:
    device, dtype = torch.device("cuda"), torch.bfloat16
    if reason := why_not_flash([LAYER], device=device, dtype=dtype, block_size=BLOCK_SIZE):
        pytest.skip(reason)
    torch.manual_seed(0)
    shape = {"num_blocks": 8, "block_size": BLOCK_SIZE, "dtype": dtype, "device": device}
    stores = [KVStore([LAYER], **shape), KVStore([LAYER], **shape)]
    for tensors in zip(*(store.keys + store.values for store in stores), strict=True):
        tensors[0].normal_()
        tensors[1].copy_(tensors[0])
    query = torch.randn(24, 4, 64, dtype=dtype, device=device)
    key, value = (torch.randn(24, 2, 64, dtype=dtype, device=device) for _ in range(2))
    backends = FlashBackend(stores[0], device=device), SdpaBackend(stores[1], dtype=dtype, device=device)
    options = LayerOptions(scale=0.125, window=window)
    flash, sdpa = (backend.begin(metadata()).attend(0, query, key, value, options) for backend in backends)
    torch.testing.assert_close(flash, sdpa, rtol=0, atol=2e-2)
