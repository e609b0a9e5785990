"""The choices of one request become one stream, which ends with the last of them."""

import numpy as np
import pytest

from roundhouse.frontend.collector import RequestOutputCollector
from roundhouse.frontend.outputs import (
    CompletionOutput,
    PositionLogprobs,
    RequestOutput,
    RequestOutputKind,
    TokenLogprob,
)
from roundhouse.frontend.parent_request import ParentRequest, child_id
from roundhouse.frontend.request_state import RequestState
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreRequest
from roundhouse.protocol.sampling import FinishReason, SamplingParams
from tests.support.small_tokenizers import byte_level, ids_of

TOKENIZER = byte_level()
DELTA, FINAL_ONLY = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY
ABC, DEF = ids_of(TOKENIZER, "ABC", "DEF")
PROMPT = ids_of(TOKENIZER, "Hello")


def new_parent(kind: RequestOutputKind, n: int) -> tuple[ParentRequest, list[RequestState]]:
    parent = ParentRequest("r", "Hello", PROMPT, kind, RequestOutputCollector(kind))
    params = SamplingParams(n=n)
    for index in range(n):
        request = EngineCoreRequest(child_id("r-1", index, n), PROMPT, params, 0.0, child_index=index)
        parent.children[request.request_id] = RequestState(request, params, parent, TOKENIZER, arrival_s=0.0)
    return parent, list(parent.children.values())


def emit(child: RequestState, token_ids: list[int], finish_reason: FinishReason | None = None, **more) -> None:
    output = EngineCoreOutput(child.request_id, 0, len(child.token_ids), token_ids, finish_reason, **more)
    child.append(output)
    child.parent.emit(child, output)


def request_output(*choices: CompletionOutput, finished: bool = False, **more) -> RequestOutput:
    return RequestOutput("r", "Hello", PROMPT, list(choices), finished, **more)


@pytest.mark.parametrize(("n", "expected"), [(1, ["r"]), (3, ["0_r", "1_r", "2_r"])])
def test_the_ids_of_children(n: int, expected: list[str]) -> None:
    assert [child_id("r", index, n) for index in range(n)] == expected


def test_choices_are_passed_on_as_they_come_and_the_last_one_finishes() -> None:
    parent, (first, second) = new_parent(DELTA, 2)
    emit(second, [ABC])
    assert parent.collector.get_nowait() == request_output(CompletionOutput(1, "ABC", [ABC]))
    emit(second, [DEF], FinishReason.LENGTH)
    assert parent.collector.get_nowait() == request_output(CompletionOutput(1, "DEF", [DEF], finish_reason="length"))
    assert list(parent.children.values()) == [first]
    emit(first, [DEF], FinishReason.LENGTH)
    assert parent.collector.get_nowait() == request_output(
        CompletionOutput(0, "DEF", [DEF], finish_reason="length"), finished=True
    )
    assert parent.children == {}


def test_final_choices_wait_for_each_other_and_come_in_order() -> None:
    parent, children = new_parent(FINAL_ONLY, 3)
    for index in (2, 0):
        emit(children[index], [ABC])
        emit(children[index], [DEF], FinishReason.LENGTH)
        assert parent.collector.get_nowait() is None
    emit(children[1], [ABC], FinishReason.LENGTH)
    assert parent.collector.get_nowait() == request_output(
        CompletionOutput(0, "ABCDEF", [ABC, DEF], finish_reason="length"),
        CompletionOutput(1, "ABC", [ABC], finish_reason="length"),
        CompletionOutput(2, "ABCDEF", [ABC, DEF], finish_reason="length"),
        finished=True,
    )


def test_cached_tokens_stand_in_every_output_and_prompt_logprobs_in_one() -> None:
    parent, (child,) = new_parent(DELTA, 1)
    parent.num_cached_tokens = 1
    parent.prompt_logprobs = [None, PositionLogprobs(TokenLogprob(ABC, "ABC", b"ABC", -1.0, 1), [])]
    expected = list(parent.prompt_logprobs)
    emit(child, [ABC])
    assert parent.collector.get_nowait() == request_output(
        CompletionOutput(0, "ABC", [ABC]), num_cached_tokens=1, prompt_logprobs=expected
    )
    emit(child, [DEF], kv_transfer_params={"block_ids": [1]})
    assert parent.collector.get_nowait() == request_output(
        CompletionOutput(0, "DEF", [DEF]), num_cached_tokens=1, kv_transfer_params={"block_ids": [1]}
    )


def test_a_pooling_output_stands_instead_of_choices() -> None:
    parent, (child,) = new_parent(FINAL_ONLY, 1)
    vector = np.array([1.0, 2.0])
    emit(child, [], FinishReason.STOP, pooling_output=vector)
    assert parent.collector.get_nowait() == request_output(finished=True, pooling_output=vector)


def test_a_child_that_was_ended_from_this_side_is_let_go() -> None:
    parent, (first, second) = new_parent(DELTA, 2)
    first.finish(FinishReason.ABORT)
    parent.emit(first)
    assert parent.collector.get_nowait() == request_output(CompletionOutput(0, "", [], finish_reason="abort"))
    assert list(parent.children) == [second.request_id]
