from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from roundhouse.models.causal_lm import CausalLM
from roundhouse.models.inspection import LayerShape
from roundhouse.models.loader import wrap_module
from roundhouse.protocol.errors import ConfigError
from roundhouse.runner import tile_probe
from roundhouse.runner.kv_store import KVStore
from roundhouse.runner.tile_probe import PLAIN, QUICK, calls_agree, choose_shapes
from tests.support.tiny_models import MAX_MODEL_LEN, tiny_model


def model_and_store(seed: int = 0, *, num_blocks: int = 16, block_size: int = 4) -> tuple[CausalLM, KVStore]:
    model = wrap_module(tiny_model("qwen3", seed=seed), max_model_len=MAX_MODEL_LEN)
    return model, KVStore(
        model.layers, num_blocks=num_blocks, block_size=block_size, dtype=model.dtype, device=model.device
    )


class RowSensitive(torch.nn.Module):
    """A layer whose result depends on how many rows there are, or on where a row stands."""

    def __init__(self, inner: torch.nn.Module, *, changes: str) -> None:
        super().__init__()
        self.inner = inner
        self.changes = changes

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        height = hidden.shape[1]
        by = torch.arange(height).reshape(1, -1, 1) if self.changes == "place" else torch.tensor(height)
        return self.inner(hidden) * (1 + 1e-6 * by)


def test_the_quick_shapes_and_a_digest_of_the_bits() -> None:
    shapes, digest = choose_shapes(*model_and_store())
    assert shapes == QUICK
    assert choose_shapes(*model_and_store(num_blocks=300, block_size=1)) == (shapes, digest)
    assert choose_shapes(*model_and_store(seed=1))[1] != digest


def test_a_pool_of_two_blocks_is_enough() -> None:
    assert choose_shapes(*model_and_store(num_blocks=2))[0] == QUICK


def test_where_heights_matter_there_is_only_one() -> None:
    model, store = model_and_store()
    layer = model.module.model.layers[0].mlp
    layer.up_proj = RowSensitive(layer.up_proj, changes="height")
    assert choose_shapes(model, store)[0] == replace(QUICK, heights=PLAIN.heights)


def test_where_the_place_of_a_row_matters_the_machine_is_refused() -> None:
    model, store = model_and_store()
    layer = model.module.model.layers[1].mlp
    layer.up_proj = RowSensitive(layer.up_proj, changes="place")
    with pytest.raises(ConfigError, match="kernels give a row other bits in another place"):
        choose_shapes(model, store)


def test_where_short_keys_matter_all_have_the_plain_length(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = tile_probe.attend_rows
    monkeypatch.setattr(tile_probe, "attend_rows", lambda *call: exact(*call) + (1e-6 if call[1].shape[2] < 512 else 0))
    assert choose_shapes(*model_and_store())[0] == replace(QUICK, key_lengths=PLAIN.key_lengths)


def test_where_hidden_keys_matter_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = tile_probe.attend_rows
    monkeypatch.setattr(tile_probe, "attend_rows", lambda *call: exact(*call) + 1e-6 * call[1].shape[2])
    with pytest.raises(ConfigError, match="kernels give a row other bits"):
        choose_shapes(*model_and_store())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_kv_heads", "size"), [(1, 64), (3, 64), (8, 128), (2, 80), (4, 96)])
def test_this_machines_kernels_do_not_see_hidden_keys(num_kv_heads: int, size: int, dtype: torch.dtype) -> None:
    layer = LayerShape(num_kv_heads, size, size, num_kv_heads, window=None, has_softcap=False, has_sinks=False)
    assert calls_agree([layer], dtype, QUICK)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_in_another_order_is_noticed(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short keys from the last to the first: the sums are the same, their last bits are not."""
    exact = tile_probe.attend_rows

    def backwards(
        rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor, scale: float
    ) -> torch.Tensor:
        if keys.shape[2] > 128:
            return exact(rows, keys, values, bias, scale)
        reversed_keys = (tensor.flip(2) for tensor in (keys, values))
        return exact(rows, *reversed_keys, bias.flip(3), scale)

    monkeypatch.setattr(tile_probe, "attend_rows", backwards)
    layer = LayerShape(3, 64, 64, 9, window=None, has_softcap=False, has_sinks=False)
    assert not calls_agree([layer], dtype, QUICK)
