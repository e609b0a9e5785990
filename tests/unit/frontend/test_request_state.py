"""One choice: received, shown, sent. The whole outputs, by kind, with what a stop string takes away."""

import pytest

from roundhouse.frontend.collector import RequestOutputCollector
from roundhouse.frontend.outputs import CompletionOutput, PositionLogprobs, RequestOutputKind, TokenLogprob
from roundhouse.frontend.parent_request import ParentRequest
from roundhouse.frontend.request_state import RequestState
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreRequest, LogprobsLists
from roundhouse.protocol.sampling import FinishReason, SamplingParams
from tests.support.small_tokenizers import byte_level, ids_of

TOKENIZER = byte_level()
DELTA, CUMULATIVE, FINAL_ONLY = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY
ABC, DEF, GHI, END = ids_of(TOKENIZER, "ABC", "DEF", "GHI", "<|end|>")
TEXTS = {ABC: "ABC", DEF: "DEF", GHI: "GHI"}
PROMPT = ids_of(TOKENIZER, "Hello")


def new_state(**params) -> RequestState:
    sampling = SamplingParams(**params)
    parent = ParentRequest("r", None, PROMPT, DELTA, RequestOutputCollector(DELTA))
    request = EngineCoreRequest("2_r", PROMPT, sampling, 0.0, attempt=1, child_index=2)
    return RequestState(request, sampling, parent, TOKENIZER, arrival_s=5.0)


def from_engine(token_ids, finish_reason=None, stop_reason=None, logprobs=None) -> EngineCoreOutput:
    lists = None
    if logprobs is not None:
        lists = LogprobsLists([[i] for i in token_ids], [[x] for x in logprobs], [1] * len(token_ids))
    return EngineCoreOutput("2_r", 1, 0, token_ids, finish_reason, stop_reason, lists)


def entry(token_id: int, logprob: float) -> PositionLogprobs:
    text = TEXTS[token_id]
    return PositionLogprobs(TokenLogprob(token_id, text, text.encode(), logprob, 1), [])


def test_a_delta_is_what_is_new_and_nothing_twice() -> None:
    state = new_state()
    assert state.take_output(DELTA) is None
    state.append(from_engine([ABC]))
    state.append(from_engine([DEF]))
    assert state.take_output(DELTA) == CompletionOutput(2, "ABCDEF", [ABC, DEF])
    assert state.take_output(DELTA) is None
    state.append(from_engine([GHI], FinishReason.LENGTH))
    assert state.take_output(DELTA) == CompletionOutput(2, "GHI", [GHI], finish_reason="length")


def test_cumulative_outputs_repeat_everything_and_the_final_one_comes_alone() -> None:
    state, final = new_state(), new_state()
    state.append(from_engine([ABC]))
    final.append(from_engine([ABC]))
    assert state.take_output(CUMULATIVE) == CompletionOutput(2, "ABC", [ABC])
    assert final.take_output(FINAL_ONLY) is None
    state.append(from_engine([DEF], FinishReason.LENGTH))
    final.append(from_engine([DEF], FinishReason.LENGTH))
    whole = CompletionOutput(2, "ABCDEF", [ABC, DEF], finish_reason="length")
    assert (state.take_output(CUMULATIVE), final.take_output(FINAL_ONLY)) == (whole, whole)


def test_logprobs_are_sent_with_their_tokens_and_summed_when_shown() -> None:
    state = new_state(logprobs=0, stop=["GHIJ"])
    state.append(from_engine([ABC, GHI], logprobs=[-1.0, -2.0]))
    first = state.take_output(DELTA)
    assert first == CompletionOutput(2, "ABC", [ABC], -1.0, [entry(ABC, -1.0)])
    state.append(from_engine([DEF], FinishReason.LENGTH, logprobs=[-4.0]))
    assert state.take_output(DELTA) == CompletionOutput(
        2, "GHIDEF", [GHI, DEF], -7.0, [entry(GHI, -2.0), entry(DEF, -4.0)], "length"
    )


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE, FINAL_ONLY])
def test_a_stop_string_takes_its_tokens_and_logprobs_away(kind: RequestOutputKind) -> None:
    state = new_state(logprobs=0, stop=["DEFGHI"])
    state.append(from_engine([ABC, DEF], logprobs=[-1.0, -2.0]))
    state.append(from_engine([GHI], FinishReason.LENGTH, logprobs=[-4.0]))
    assert (state.finish_reason, state.stop_reason, state.token_ids) == (FinishReason.STOP, "DEFGHI", [ABC])
    assert state.take_output(kind) == CompletionOutput(2, "ABC", [ABC], -1.0, [entry(ABC, -1.0)], "stop", "DEFGHI")


def test_a_stop_token_counts_without_text() -> None:
    state = new_state()
    state.append(from_engine([ABC, DEF], FinishReason.STOP, stop_reason=DEF))
    assert state.take_output(DELTA) == CompletionOutput(2, "ABC", [ABC, DEF], finish_reason="stop", stop_reason=DEF)


def test_an_end_from_this_side_shows_what_was_held_back() -> None:
    state = new_state(stop=["DEFGHI"])
    state.append(from_engine([ABC, DEF]))
    assert state.take_output(DELTA) == CompletionOutput(2, "A", [])
    state.finish(FinishReason.ABORT)
    assert state.take_output(DELTA) == CompletionOutput(2, "BCDEF", [ABC, DEF], finish_reason="abort")


def test_a_finished_choice_is_told_even_when_it_has_nothing_new() -> None:
    state = new_state(detokenize=False)
    state.append(from_engine([ABC, END]))
    assert state.take_output(DELTA) == CompletionOutput(2, "", [ABC, END])
    state.append(from_engine([], FinishReason.ABORT))
    assert state.take_output(DELTA) == CompletionOutput(2, "", [], finish_reason="abort")
