from __future__ import annotations

import pytest

from roundhouse.kvcache.config import CacheConfig
from roundhouse.kvcache.manager import KVCacheManager
from roundhouse.protocol.errors import (
    ContextLengthExceeded,
    DuplicateRequestId,
    InvalidRequest,
    PromptNeverFits,
    RequestError,
)
from roundhouse.scheduler.admission import check_admissible
from roundhouse.scheduler.config import SchedulerConfig
from roundhouse.scheduler.request import Request
from tests.support.builders import request

CONFIG = SchedulerConfig(max_model_len=20)


def check(one: Request, *, num_blocks: int = 9, live: frozenset[str] = frozenset()) -> None:
    check_admissible(one, live, CONFIG, KVCacheManager(CacheConfig(num_blocks=num_blocks, block_size=4)))


def test_a_prompt_and_one_output_fill_the_context() -> None:
    check(request(prompt=19))
    with pytest.raises(ContextLengthExceeded, match="maximum context length is 20 tokens"):
        check(request(prompt=20))


def test_a_prompt_alone_fills_the_cache() -> None:
    check(request(prompt=12), num_blocks=4)
    with pytest.raises(PromptNeverFits, match=r"has 13 tokens .* has room for 12"):
        check(request(prompt=13), num_blocks=4)


def test_outputs_of_an_earlier_attempt_do_not_count() -> None:
    check(request(prompt=12, outputs=[5] * 30), num_blocks=4)


@pytest.mark.parametrize("wrong", [-1, 2**31])
def test_token_ids_that_no_vocabulary_has(wrong: int) -> None:
    with pytest.raises(InvalidRequest, match="token id"):
        check(request(prompt=[1, wrong]))
    with pytest.raises(InvalidRequest, match="token id"):
        check(request(prompt=[1], outputs=[wrong]))


def test_a_live_id() -> None:
    with pytest.raises(DuplicateRequestId, match="request a is live") as error:
        check(request("a"), live=frozenset(["0:a"]))
    assert isinstance(error.value, RequestError)
    check(request("a"), live=frozenset(["1:a", "a"]))
