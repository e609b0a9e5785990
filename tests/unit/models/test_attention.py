import torch

from roundhouse.models.attention import ARGUMENT, LayerOptions, paged_attention_forward


class _Spy:
    def __init__(self) -> None:
        self.call: tuple[int, list[tuple[int, ...]], LayerOptions] | None = None

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: LayerOptions
    ) -> torch.Tensor:
        self.call = layer, [tuple(tensor.shape) for tensor in (query, key, value)], options
        return torch.zeros(query.shape[0], query.shape[1], value.shape[2])


class _Layer(torch.nn.Module):
    layer_idx = 3


def test_tensors_and_options_as_transformers_gives_them() -> None:
    spy = _Spy()
    query, key, value = torch.zeros(1, 4, 7, 16), torch.zeros(1, 2, 7, 16), torch.zeros(1, 2, 7, 8)
    passed = {"sliding_window": 5, "softcap": 2.0, "position_ids": None, ARGUMENT: spy}
    out, weights = paged_attention_forward(_Layer(), query, key, value, None, scaling=None, **passed)
    assert (tuple(out.shape), weights) == ((1, 7, 4, 8), None)
    assert spy.call == (3, [(7, 4, 16), (7, 2, 16), (7, 2, 8)], LayerOptions(scale=0.25, window=5, softcap=2.0))
