from __future__ import annotations

from typing import Any

import pytest

from roundhouse.protocol.sampling import FinishReason
from roundhouse.scheduler.stop import EndOfRequest, find_end
from tests.support.builders import request

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("outputs", "params", "end"),
    [
        ([5], {}, None),
        ([0], {}, EndOfRequest(STOP)),
        ([0], {"ignore_eos": True}, None),
        ([0], {"eos_token_id": None}, None),
        ([7], {"stop_token_ids": [7]}, EndOfRequest(STOP, 7)),
        # EOS comes first, so an EOS that is a stop token too leaves no stop reason …
        ([0], {"stop_token_ids": [0]}, EndOfRequest(STOP)),
        # … unless it is ignored as EOS.
        ([0], {"stop_token_ids": [0], "ignore_eos": True}, EndOfRequest(STOP, 0)),
        ([5, 5], {"max_tokens": 2}, EndOfRequest(LENGTH)),
        ([5, 0], {"max_tokens": 2}, EndOfRequest(STOP)),
        ([5, 7], {"max_tokens": 2, "stop_token_ids": [7]}, EndOfRequest(STOP, 7)),
        ([5, 5, 5], {"max_tokens": 2}, EndOfRequest(LENGTH)),
        ([5] * 99, {"max_tokens": None}, None),
        ([0], {"min_tokens": 2}, None),
        ([7], {"min_tokens": 2, "stop_token_ids": [7]}, None),
        ([5, 0], {"min_tokens": 2}, EndOfRequest(STOP)),
        ([5, 5], {"min_tokens": 2, "max_tokens": 2}, EndOfRequest(LENGTH)),
    ],
)
def test_the_order_of_ends(outputs: list[int], params: dict[str, Any], end: EndOfRequest | None) -> None:
    assert find_end(request(prompt=[1, 2, 3], outputs=outputs, **params), max_model_len=1000) == end


def test_the_context_ends_it_even_before_min_tokens() -> None:
    full = request(prompt=[1, 2, 3], outputs=[5, 0], min_tokens=9, max_tokens=None)
    assert find_end(full, max_model_len=5) == EndOfRequest(LENGTH)
    assert find_end(full, max_model_len=6) is None
