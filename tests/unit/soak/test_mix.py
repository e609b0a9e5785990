"""The same seed gives the same run, and every kind of client is in it."""

from __future__ import annotations

from itertools import islice

import msgspec

from roundhouse.protocol import limits
from roundhouse.server.schema import ChatCompletionBody, CompletionBody
from tests.soak.mix import CHAT, COMPLETIONS, FEATURES, Request, crowd, filling, requests

SCHEMAS = {CHAT: ChatCompletionBody, COMPLETIONS: CompletionBody}


def first_requests(seed: int, stream: int, count: int = 400) -> list[Request]:
    return list(islice(requests(seed, stream, "m"), count))


def test_the_seed_decides_everything() -> None:
    assert first_requests(1, 0) == first_requests(1, 0)
    assert filling(1, "m", 2000) == filling(1, "m", 2000)
    assert first_requests(1, 0)[:5] != first_requests(2, 0)[:5]
    assert first_requests(1, 0)[:5] != first_requests(1, 1)[:5]


def test_a_stream_has_every_kind_by_both_routes_and_in_both_manners() -> None:
    seen = {(request.kind, request.path, request.is_stream) for request in first_requests(1, 0)}
    assert seen == {(kind, path, stream) for kind in FEATURES for path in SCHEMAS for stream in (False, True)}


def test_requests_of_clients_that_behave_are_valid() -> None:
    for request in first_requests(3, 0):
        body = msgspec.json.decode(request.encode(), type=SCHEMAS[request.path])
        assert body.model == "m"
        assert request.num_choices == (body.n or 1) <= limits.MAX_CHOICES


def test_shared_prefixes_are_shared_by_several_blocks() -> None:
    starts = {
        str(r.body.get("prompt"))[:400]
        for r in first_requests(1, 0)
        if r.kind == "shared prefix" and r.path == COMPLETIONS
    }
    assert len(starts) == 3


def test_filling_has_the_tokens_that_were_asked_for_and_no_common_block() -> None:
    prompts = [request.body["prompt"] for request in filling(1, "m", 4500)]
    assert [len(prompt) for prompt in prompts] == [1000] * 5
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 5


def test_a_crowd_has_requests_of_every_kind_and_is_the_same_again() -> None:
    requests = crowd(1, "m", 128)
    assert len(requests) == 128
    assert {request.kind for request in requests} == set(FEATURES)
    assert requests == crowd(1, "m", 128)
    assert requests != crowd(2, "m", 128)
