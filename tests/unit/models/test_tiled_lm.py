import pytest
import torch

from roundhouse.models.attention import LayerOptions
from roundhouse.models.loader import wrap_module
from roundhouse.models.tiled_lm import TiledCausalLM
from tests.support.tiny_models import MAX_MODEL_LEN, VOCAB_SIZE, tiny_model


class CountingTile:
    """Attends to nothing and writes down the heights it is given."""

    def __init__(self) -> None:
        self.heights: list[int] = []

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: LayerOptions
    ) -> torch.Tensor:
        self.heights.append(query.shape[0])
        return torch.zeros_like(query)


class CountingStep(CountingTile):
    def __init__(self, num_tiles: int) -> None:
        super().__init__()
        self.tiles = [CountingTile() for _ in range(num_tiles)]


@pytest.mark.parametrize(
    ("num_tokens", "heights"),
    [(1, [8]), (8, [8]), (9, [32]), (33, [32, 8]), (70, [32, 32, 8])],
)
def test_every_layer_sees_tiles_of_two_heights_and_every_logit_has_its_place(
    num_tokens: int, heights: list[int]
) -> None:
    model = wrap_module(tiny_model("llama"), max_model_len=MAX_MODEL_LEN)
    tiled = TiledCausalLM(model, heights=(8, 32))
    token_ids = torch.arange(num_tokens)
    step = CountingStep(len(heights))
    with torch.inference_mode():
        logits = tiled.forward(token_ids, token_ids, step, token_ids)
        assert [tile.heights for tile in step.tiles] == [[height] * 2 for height in heights]
        chosen = torch.tensor([num_tokens - 1, 0])
        assert torch.equal(tiled.logits_of_last_forward(chosen), logits[chosen])
        assert tiled.logits_of_last_forward(token_ids[:0]).shape == (0, VOCAB_SIZE)
        torch.testing.assert_close(logits, model.forward(token_ids, token_ids, CountingTile(), token_ids))


def test_attention_that_knows_no_tiles_is_a_bug() -> None:
    tiled = TiledCausalLM(wrap_module(tiny_model("llama"), max_model_len=MAX_MODEL_LEN), heights=(8, 32))
    with pytest.raises(AssertionError, match="needs attention by tiles"):
        tiled.forward(torch.zeros(1).long(), torch.zeros(1).long(), CountingTile(), torch.zeros(1).long())
