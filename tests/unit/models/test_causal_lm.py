"""The model as the runner sees it, with a recorder in place of attention."""

import pytest
import torch

from roundhouse.models.inspection import Recorder
from roundhouse.models.loader import wrap_module
from tests.support.tiny_models import CONFIGS, MAX_MODEL_LEN, tiny_model


@pytest.mark.parametrize("family", CONFIGS)
def test_logits_of_the_last_forward_equal_those_asked_for_in_it(family: str) -> None:
    model = wrap_module(tiny_model(family), max_model_len=MAX_MODEL_LEN)
    token_ids, positions = torch.tensor([3, 1, 4, 1, 5]), torch.tensor([0, 1, 2, 0, 1])
    with torch.inference_mode():
        wanted = model.forward(token_ids, positions, Recorder(), torch.tensor([1, 4]))
        again = model.logits_of_last_forward(torch.tensor([4, 1]))
    assert tuple(wanted.shape) == (2, model.vocab_size)
    torch.testing.assert_close(again.flip(0), wanted, rtol=0, atol=1e-5)
