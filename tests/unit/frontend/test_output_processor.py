"""Engine outputs in, collectors out; what is late, doubled, lost or wrong; and that nothing stays behind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundhouse.frontend.input_processor import InputProcessor
from roundhouse.frontend.output_processor import OutputProcessor
from roundhouse.frontend.outputs import CompletionOutput, RequestOutput, RequestOutputKind
from roundhouse.frontend.stats import IterationStats
from roundhouse.frontend.token_stream import TokenStream
from roundhouse.protocol.errors import (
    DuplicateRequestId,
    EngineDeadError,
    EngineGenerateError,
    InvalidRequest,
    PromptNeverFits,
)
from roundhouse.protocol.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    LogprobsLists,
    OutputError,
    PoolingParams,
    PromptLogprobs,
)
from roundhouse.protocol.sampling import FinishReason, SamplingParams
from tests.support.faulty_tokenizer import FAULTS
from tests.support.scripted_client import output
from tests.support.small_tokenizers import byte_level, ids_of

TOKENIZER = byte_level()
DELTA, CUMULATIVE, FINAL_ONLY = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY
ABC, DEF, GHI, END = ids_of(TOKENIZER, "ABC", "DEF", "GHI", "<|end|>")
PROMPT = ids_of(TOKENIZER, "Hello", ".")


def fail_on(token_id, fault, monkeypatch):
    """Detokenizers fail by `fault` when they meet the token."""
    step = TokenStream.step
    monkeypatch.setattr(TokenStream, "step", lambda self, new: FAULTS[fault]() if new == token_id else step(self, new))


class Frontend:
    """An output processor and what AsyncLLM does around it, at a time that stands still."""

    def __init__(self) -> None:
        self.processor = OutputProcessor(TOKENIZER)
        self.iteration = IterationStats()
        self._input = InputProcessor(TOKENIZER, lambda count: 1, pooling_tasks=frozenset({"embed"}))

    def add(self, external_id="r", params=None, kind=DELTA):
        parsed = self._input.parse(PROMPT, params or SamplingParams(), None, 100)
        children = self._input.make_requests(external_id + "-x", parsed, PROMPT, max_model_len=100, arrival_time=0.0)
        collector = self.processor.reserve(external_id, kind, parsed.num_choices).collector
        self.processor.add_request(external_id, parsed, children, arrival_s=0.0)
        return collector, children

    def process(self, *outputs):
        batch = EngineCoreOutputs(outputs=list(outputs))
        return self.processor.process_outputs(batch, batch.outputs, 1.0, self.iteration)

    def abort(self, *external_ids):
        return self.processor.abort_requests(external_ids, 1.0, self.iteration)

    @property
    def finish_reasons(self):
        return [str(finished.finish_reason) for finished in self.iteration.finished]

    def assert_empty(self):
        assert (self.processor.request_states, self.processor.parents, self.processor.reservations) == ({}, {}, {})


def choice(text, token_ids, finish_reason=None, stop_reason=None, index=0):
    return CompletionOutput(index, text, token_ids, finish_reason=finish_reason, stop_reason=stop_reason)


def request_output(*choices, finished=False, **more):
    return RequestOutput("r", None, PROMPT, list(choices), finished, **more)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (DELTA, [choice("ABC", [ABC]), choice("DEF", [DEF]), choice("GHI", [GHI], "length")]),
        (
            CUMULATIVE,
            [choice("ABC", [ABC]), choice("ABCDEF", [ABC, DEF]), choice("ABCDEFGHI", [ABC, DEF, GHI], "length")],
        ),
        (FINAL_ONLY, [None, None, choice("ABCDEFGHI", [ABC, DEF, GHI], "length")]),
    ],
)
def test_each_kind_of_output(kind, expected):
    frontend = Frontend()
    collector, (request,) = frontend.add(kind=kind)
    got = []
    for place, token_id in enumerate([ABC, DEF, GHI]):
        finish_reason = FinishReason.LENGTH if place == 2 else None
        assert frontend.process(output(request, [token_id], finish_reason, first=place)) == []
        got.append(collector.get_nowait())
    assert got == [
        None if each is None else request_output(each, finished=each.finish_reason is not None) for each in expected
    ]
    assert frontend.finish_reasons == ["length"]
    frontend.assert_empty()


@pytest.mark.parametrize("stop_reason", [None, ABC])
def test_a_stop_token_is_counted_but_not_shown(stop_reason):
    frontend = Frontend()
    collector, (request,) = frontend.add()
    frontend.process(output(request, [ABC, END], FinishReason.STOP, stop_reason=stop_reason))
    assert collector.get_nowait() == request_output(choice("ABC", [ABC, END], "stop", stop_reason), finished=True)


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE, FINAL_ONLY])
@pytest.mark.parametrize(
    ("include", "text", "tokens", "cumulative"), [(False, "ABC", [ABC], -1.0), (True, "ABCDEF", [ABC, DEF], -3.0)]
)
def test_a_stop_string_trims_text_tokens_and_logprobs_and_aborts(kind, include, text, tokens, cumulative):
    frontend = Frontend()
    params = SamplingParams(stop=["DEF"], include_stop_str_in_output=include, logprobs=0)
    collector, (request,) = frontend.add(params=params, kind=kind)
    outputs = []
    ids, logprobs = [ABC, DEF, GHI], [-1.0, -2.0, -4.0]
    for first, last in ((0, 1), (1, 3)):
        lists = LogprobsLists([[i] for i in ids[first:last]], [[x] for x in logprobs[first:last]], [1] * (last - first))
        to_abort = frontend.process(output(request, ids[first:last], first=first, logprobs=lists))
        outputs.append(collector.get_nowait())
    assert to_abort == [request.request_id]
    last_output = outputs[-1]
    assert last_output.finished
    choices = [each.outputs[0] for each in (outputs if kind is DELTA else outputs[-1:]) if each is not None]
    assert "".join(each.text for each in choices) == text
    assert [token_id for each in choices for token_id in each.token_ids] == tokens
    assert [entry.sampled.token_id for each in choices for entry in each.logprobs] == tokens
    final = choices[-1]
    assert (final.finish_reason, final.stop_reason, final.cumulative_logprob) == ("stop", "DEF", cumulative)
    frontend.assert_empty()


def test_a_stop_string_wins_over_the_engines_own_end_and_aborts_nothing():
    frontend = Frontend()
    collector, (request,) = frontend.add(params=SamplingParams(stop=["DEF"]))
    assert frontend.process(output(request, [ABC, DEF], FinishReason.LENGTH)) == []
    assert collector.get_nowait() == request_output(choice("ABC", [ABC], "stop", "DEF"), finished=True)


def test_without_detokenizing_there_are_tokens_only():
    frontend = Frontend()
    collector, (request,) = frontend.add(params=SamplingParams(detokenize=False))
    frontend.process(output(request, [ABC, END], FinishReason.STOP))
    assert collector.get_nowait() == request_output(choice("", [ABC, END], "stop"), finished=True)


def test_what_comes_with_the_first_output():
    frontend = Frontend()
    collector, (request,) = frontend.add(params=SamplingParams(prompt_logprobs=0))
    rows = PromptLogprobs(np.array([[PROMPT[1]]]), np.array([[-0.5]]), np.array([2]))
    frontend.process(output(request, [ABC], prompt_logprobs=rows, num_cached_tokens=1))
    first = collector.get_nowait()
    frontend.process(output(request, [DEF], first=1, kv_transfer_params={"a": 1}))
    second = collector.get_nowait()
    assert [None if each is None else each.sampled.logprob for each in first.prompt_logprobs] == [None, -0.5]
    assert (first.num_cached_tokens, second.num_cached_tokens, second.prompt_logprobs) == (1, 1, None)
    assert second.kv_transfer_params == {"a": 1}


def test_choices_come_as_they_are_made_and_end_together():
    frontend = Frontend()
    collector, (first, second) = frontend.add(params=SamplingParams(n=2))
    frontend.process(output(second, [DEF]), output(first, [ABC], FinishReason.LENGTH))
    assert collector.get_nowait() == request_output(choice("DEF", [DEF], index=1), choice("ABC", [ABC], "length"))
    frontend.process(output(second, [GHI], FinishReason.LENGTH, first=1))
    assert collector.get_nowait() == request_output(choice("GHI", [GHI], "length", index=1), finished=True)
    frontend.assert_empty()


def test_final_choices_come_once_in_order():
    frontend = Frontend()
    collector, (first, second) = frontend.add(params=SamplingParams(n=2), kind=FINAL_ONLY)
    frontend.process(output(second, [DEF], FinishReason.LENGTH))
    assert collector.get_nowait() is None
    frontend.process(output(first, [ABC], FinishReason.LENGTH))
    assert collector.get_nowait() == request_output(
        choice("ABC", [ABC], "length"), choice("DEF", [DEF], "length", index=1), finished=True
    )


def test_pooling():
    frontend = Frontend()
    collector, (request,) = frontend.add(params=PoolingParams(), kind=FINAL_ONLY)
    vector = np.array([1.0, 2.0])
    frontend.process(output(request, [], FinishReason.STOP, pooling_output=vector))
    assert collector.get_nowait() == request_output(finished=True, pooling_output=vector)
    frontend.assert_empty()


def test_late_and_doubled_outputs_are_dropped_and_counted():
    frontend = Frontend()
    collector, (request,) = frontend.add()
    frontend.process(output(request, [ABC]))
    frontend.process(output(request, [ABC]), EngineCoreOutput("unknown", 0, 0, [DEF]))
    frontend.process(output(request, [DEF], FinishReason.LENGTH, first=1))
    assert collector.get_nowait() == request_output(choice("ABCDEF", [ABC, DEF], "length"), finished=True)
    assert frontend.iteration.num_late_outputs == 2


def test_the_next_engine_goes_on_where_the_last_one_stopped_and_that_one_is_not_heard_any_more():
    frontend = Frontend()
    collector, (request,) = frontend.add()
    frontend.process(output(request, [ABC]))
    frontend.process(
        EngineCoreOutput(request.request_id, 2, 1, [DEF]),
        EngineCoreOutput(request.request_id, 0, 2, [ABC]),
        EngineCoreOutput(request.request_id, 1, 2, [], FinishReason.ABORT),
        EngineCoreOutput(request.request_id, 2, 1, [DEF]),
    )
    frontend.process(EngineCoreOutput(request.request_id, 2, 2, [GHI], FinishReason.LENGTH))
    assert collector.get_nowait() == request_output(choice("ABCDEFGHI", [ABC, DEF, GHI], "length"), finished=True)
    assert frontend.iteration.num_late_outputs == 3


def test_the_cached_tokens_are_those_of_the_engine_that_began():
    frontend = Frontend()
    collector, (request,) = frontend.add(kind=FINAL_ONLY)
    frontend.process(output(request, [ABC], num_cached_tokens=1))
    frontend.process(
        EngineCoreOutput(request.request_id, 1, 1, [DEF], FinishReason.LENGTH, num_cached_tokens=2),
    )
    assert collector.get_nowait().num_cached_tokens == 1


def test_tokens_lost_on_the_way_end_the_request_rather_than_leave_a_hole():
    frontend = Frontend()
    collector, (request,) = frontend.add()
    assert frontend.process(output(request, [DEF], first=1)) == [request.request_id]
    with pytest.raises(EngineGenerateError, match="lost"):
        collector.get_nowait()
    frontend.assert_empty()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OutputError("prompt_never_fits", "too large", "prompt"), PromptNeverFits),
        (OutputError("engine_dead", "gone"), EngineDeadError),
        (OutputError("from_a_newer_engine", "?"), EngineGenerateError),
        (None, EngineGenerateError),
    ],
)
def test_an_error_ends_all_choices_of_its_request_alone(error, expected):
    frontend = Frontend()
    collector, (first, second) = frontend.add(params=SamplingParams(n=2))
    other, (bystander,) = frontend.add("other")
    to_abort = frontend.process(output(first, [], FinishReason.ERROR, error=error), output(bystander, [ABC]))
    assert to_abort == [second.request_id]
    with pytest.raises(expected):
        collector.get_nowait()
    assert other.get_nowait().outputs == [choice("ABC", [ABC])]
    assert frontend.finish_reasons == ["error", "error"]
    assert list(frontend.processor.request_states) == [bystander.request_id]


def test_a_fault_of_ours_ends_the_request_it_met():
    frontend = Frontend()
    collector, (request,) = frontend.add(params=SamplingParams(logprobs=0))
    other, (bystander,) = frontend.add("other")
    broken = LogprobsLists([[ABC]], [[-1.0, -2.0]], [1])
    assert frontend.process(output(request, [ABC], logprobs=broken), output(bystander, [ABC])) == [request.request_id]
    with pytest.raises(EngineGenerateError):
        collector.get_nowait()
    assert other.get_nowait() is not None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_detokenizer_that_fails_on_a_token_ends_that_request_alone(fault, monkeypatch):
    fail_on(GHI, fault, monkeypatch)
    frontend = Frontend()
    collector, (first, second) = frontend.add(params=SamplingParams(n=2))
    other, (bystander,) = frontend.add("other")
    to_abort = frontend.process(output(first, [GHI]), output(second, [ABC]), output(bystander, [ABC]))
    assert to_abort == [first.request_id, second.request_id]
    with pytest.raises(EngineGenerateError, match="could not be processed"):
        collector.get_nowait()
    assert other.get_nowait().outputs == [choice("ABC", [ABC])]
    assert frontend.abort("other") == [bystander.request_id]
    frontend.assert_empty()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_detokenizer_that_fails_on_the_prompt_leaves_nothing_of_it(fault, monkeypatch):
    frontend = Frontend()
    fail_on(PROMPT[-1], fault, monkeypatch)
    with pytest.raises(EngineGenerateError, match="prompt"):
        frontend.add(params=SamplingParams(n=2))
    frontend.assert_empty()


@pytest.mark.parametrize("fault", FAULTS)
def test_an_abort_ends_a_request_whose_last_text_cannot_be_made(fault, monkeypatch):
    frontend = Frontend()
    collector, children = frontend.add(params=SamplingParams(n=2))
    other, (bystander,) = frontend.add("other")
    monkeypatch.setattr(TokenStream, "flush", lambda self: FAULTS[fault]())
    assert frontend.abort("r") == [child.request_id for child in children]
    with pytest.raises(EngineGenerateError):
        collector.get_nowait()
    monkeypatch.undo()
    assert frontend.abort("other") == [bystander.request_id]
    assert other.get_nowait().finished
    frontend.assert_empty()


def test_an_interrupt_is_no_fault_of_a_request(monkeypatch):
    def interrupt(self, token_id):
        raise KeyboardInterrupt

    frontend = Frontend()
    _, (request,) = frontend.add()
    monkeypatch.setattr(TokenStream, "step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        frontend.process(output(request, [ABC]))


def test_an_abort_gives_what_there_is():
    frontend = Frontend()
    collector, (request,) = frontend.add(params=SamplingParams(stop=["DEFGHI"]))
    frontend.process(output(request, [ABC, DEF]))
    assert frontend.abort("r", "unknown", "r") == [request.request_id]
    assert collector.get_nowait() == request_output(choice("ABCDEF", [ABC, DEF], "abort"), finished=True)
    assert frontend.finish_reasons == ["abort"]
    frontend.assert_empty()


def test_an_abort_before_the_tokens_are_known():
    processor = OutputProcessor(TOKENIZER)
    reservation = processor.reserve("r", DELTA, 2)
    assert processor.abort_requests(["r"], 0.0, IterationStats()) == []
    assert not processor.is_reserved("r", reservation)
    assert [each.finish_reason for each in reservation.collector.get_nowait().outputs] == ["abort", "abort"]


def test_a_live_id_is_refused_and_free_again_afterwards():
    frontend = Frontend()
    collector, (request,) = frontend.add()
    with pytest.raises(DuplicateRequestId):
        frontend.processor.reserve("r", DELTA, 1)
    frontend.process(output(request, [ABC]))
    assert collector.get_nowait() is not None
    frontend.abort("r")
    frontend.processor.release("r", frontend.processor.reserve("r", DELTA, 1))
    with pytest.raises(InvalidRequest):
        frontend.add(params=SamplingParams(n=0))
    frontend.add()


def test_when_everything_fails_everybody_hears_of_it():
    frontend = Frontend()
    collectors = [frontend.add()[0], frontend.add("other")[0], frontend.processor.reserve("third", DELTA, 1).collector]
    assert len(frontend.processor.fail_all(EngineDeadError("gone"), 1.0, frontend.iteration)) == 2
    for collector in collectors:
        with pytest.raises(EngineDeadError):
            collector.get_nowait()
    frontend.assert_empty()


@given(data=st.data())
def test_every_request_ends_exactly_once_whatever_happens(data):
    """Adds, tokens, ends, errors and aborts in any order, with ids used again and again."""
    frontend = Frontend()
    live: dict[str, list] = {}
    num_choices = 0
    for _ in range(data.draw(st.integers(0, 40))):
        external_id = data.draw(st.sampled_from("abc"))
        action = data.draw(st.sampled_from(["add", "token", "end", "error", "abort", "late"]))
        if action == "add" and external_id not in frontend.processor.parents:
            n = data.draw(st.integers(1, 3))
            _, live[external_id] = frontend.add(external_id, SamplingParams(n=n, stop=["GHI"]))
            num_choices += n
        elif action == "abort":
            frontend.abort(external_id)
        elif external_id in live:
            request = data.draw(st.sampled_from(live[external_id]))
            state = frontend.processor.request_states.get(request.request_id)
            first = len(state.token_ids) if state else 0
            token = data.draw(st.sampled_from([ABC, DEF, GHI]))
            reason = {"end": FinishReason.LENGTH, "error": FinishReason.ERROR}.get(action)
            frontend.process(output(request, [] if action == "error" else [token], reason, first=first))
    frontend.abort(*list(frontend.processor.parents))
    frontend.assert_empty()
    assert len(frontend.iteration.finished) == num_choices
