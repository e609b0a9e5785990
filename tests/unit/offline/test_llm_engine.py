"""Add, step, abort: what each step brings, what fails alone, and that nothing stays behind."""

import pytest

from roundhouse.frontend.outputs import CompletionOutput, RequestOutput, RequestOutputKind
from roundhouse.protocol.errors import (
    ContextLengthExceeded,
    DuplicateRequestId,
    EngineDeadError,
    EngineGenerateError,
    InvalidRequest,
    PromptNeverFits,
)
from roundhouse.protocol.sampling import SamplingParams
from tests.support.offline_engine import TOKENIZER, OfflineEngine
from tests.support.scripted_runner import continue_prompt
from tests.support.small_tokenizers import ids_of

ABC, DEF, GHI, END = ids_of(TOKENIZER, "ABC", "DEF", "GHI", "<|end|>")
HELLO = ids_of(TOKENIZER, "Hello", ".")
GREEDY = SamplingParams(temperature=0.0, max_tokens=3)


def run(offline: OfflineEngine) -> list[list[RequestOutput]]:
    steps = []
    while offline.engine.has_unfinished_requests():
        steps.append(offline.engine.step())
    return steps


def test_outputs_are_cumulative_and_the_last_is_finished() -> None:
    offline = OfflineEngine(script={"a": [ABC, DEF, END]})
    offline.engine.add_request("a", {"prompt_token_ids": HELLO}, SamplingParams(temperature=0.0, max_tokens=9))

    def output(text: str, token_ids: list[int], reason: str | None = None) -> RequestOutput:
        choice = CompletionOutput(0, text, token_ids, finish_reason=reason)
        return RequestOutput("a", None, HELLO, [choice], finished=reason is not None)

    assert run(offline) == [
        [output("ABC", [ABC])],
        [output("ABCDEF", [ABC, DEF])],
        [output("ABCDEF", [ABC, DEF, END], "stop")],
    ]
    offline.assert_empty()


def test_a_text_is_tokenized_and_stands_in_the_output() -> None:
    offline = OfflineEngine(script={"a": [ABC, DEF, GHI]})
    offline.engine.add_request("a", "Hello.", GREEDY)
    (output,) = run(offline)[-1]
    assert (output.prompt, output.prompt_token_ids) == ("Hello.", TOKENIZER.encode("Hello."))
    assert output.outputs[0].text == "ABCDEFGHI"


def test_requests_share_steps_and_keep_their_kinds() -> None:
    offline = OfflineEngine(script={"a": [ABC, DEF, GHI], "b": [GHI, DEF, ABC]})
    offline.engine.add_request("a", HELLO, GREEDY, output_kind=RequestOutputKind.DELTA)
    offline.engine.add_request("b", HELLO, GREEDY, output_kind=RequestOutputKind.FINAL_ONLY)
    assert offline.engine.get_num_unfinished_requests() == 2
    texts = [[(output.request_id, output.outputs[0].text) for output in step] for step in run(offline)]
    assert texts == [[("a", "ABC")], [("a", "DEF")], [("a", "GHI"), ("b", "GHIDEFABC")]]
    offline.assert_empty()


def test_the_tokens_are_those_of_the_model_and_the_seed() -> None:
    offline = OfflineEngine()
    offline.engine.add_request("a", HELLO, SamplingParams(seed=7, max_tokens=5, ignore_eos=True))
    offline.engine.add_request("b", HELLO, SamplingParams(max_tokens=5, ignore_eos=True))
    last = run(offline)[-1]
    expected = [
        continue_prompt(HELLO, 5, seed=seed - 2**64 if seed >= 2**63 else seed, vocab_size=TOKENIZER.vocab_size)
        for seed in (7, 1)
    ]
    assert [output.outputs[0].token_ids for output in last] == expected


def test_choices_of_one_request_come_together() -> None:
    offline = OfflineEngine(script={"0_a": [ABC, ABC, ABC], "1_a": [DEF, END]})
    params = SamplingParams(n=2, max_tokens=3)
    offline.engine.add_request("a", HELLO, params, output_kind=RequestOutputKind.FINAL_ONLY)
    steps = run(offline)
    assert [len(step) for step in steps] == [0, 0, 1]
    (output,) = steps[-1]
    assert [(c.index, c.text, c.finish_reason) for c in output.outputs] == [
        (0, "ABCABCABC", "length"),
        (1, "DEF", "stop"),
    ]


def test_a_stop_string_ends_the_request_in_the_core_too() -> None:
    offline = OfflineEngine(script={"a": [ABC, DEF, GHI, ABC]})
    offline.engine.add_request("a", HELLO, SamplingParams(temperature=0.0, max_tokens=9, stop=["EF"]))
    (output,) = run(offline)[-1]
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("ABCD", "EF")
    offline.assert_empty()


def test_a_failed_request_leaves_the_others_alone() -> None:
    offline = OfflineEngine(script={"a": [ABC, DEF, GHI]}, fail={"b": "the sampler choked"})
    offline.engine.add_request("a", HELLO, GREEDY)
    offline.engine.add_request("b", HELLO, GREEDY)
    first, *_, last = run(offline)
    failed = first[1]
    assert (failed.request_id, failed.finished, failed.prompt_token_ids) == ("b", True, HELLO)
    assert failed.outputs == [CompletionOutput(0, "", [], finish_reason="error")]
    assert isinstance(failed.error, EngineGenerateError)
    assert failed.error.message == "the sampler choked"
    assert [(output.request_id, output.outputs[0].text, output.error) for output in last] == [("a", "ABCDEFGHI", None)]
    offline.assert_empty()


def test_a_failing_choice_fails_its_request_with_all_its_choices() -> None:
    offline = OfflineEngine(fail={"1_a": "the sampler choked"})
    offline.engine.add_request("a", HELLO, SamplingParams(n=3, max_tokens=3))
    ((output,),) = run(offline)
    assert [(choice.index, choice.finish_reason) for choice in output.outputs] == [(i, "error") for i in range(3)]
    offline.assert_empty()


def test_a_tokenizer_that_fails_on_an_output_fails_that_request() -> None:
    offline = OfflineEngine(script={"a": [ABC, DEF, GHI], "b": [ABC, DEF, GHI]})
    offline.engine.add_request("a", HELLO, GREEDY)
    offline.engine.add_request("b", HELLO, GREEDY)

    class Choking:
        def update(self, *args: object, **options: object) -> None:
            raise OverflowError("injected")

    offline.engine._output_processor.request_states["b"]._detokenizer = Choking()
    first, *_, last = run(offline)
    assert [(output.request_id, type(output.error)) for output in first] == [
        ("a", type(None)),
        ("b", EngineGenerateError),
    ]
    assert [(output.request_id, output.outputs[0].text) for output in last] == [("a", "ABCDEFGHI")]
    offline.assert_empty()


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ("", GREEDY, InvalidRequest),
        ([TOKENIZER.vocab_size], GREEDY, InvalidRequest),
        ([ABC] * 64, GREEDY, ContextLengthExceeded),
        (HELLO, SamplingParams(temperature=-1.0), InvalidRequest),
    ],
)
def test_what_cannot_be_served_is_refused_and_leaves_nothing(prompt, params, error) -> None:
    offline = OfflineEngine()
    with pytest.raises(error):
        offline.engine.add_request("a", prompt, params)
    offline.assert_empty()
    assert offline.engine.step() == []


def test_arguments_in_another_order_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="add_request takes"):
        OfflineEngine().engine.add_request("Hello", GREEDY, "a")  # type: ignore[arg-type]


def test_adapters_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="adapters"):
        OfflineEngine().engine.add_request("a", HELLO, GREEDY, lora_request=object())


def test_a_live_id_is_taken_until_its_request_has_ended() -> None:
    offline = OfflineEngine()
    offline.engine.add_request("a", HELLO, GREEDY)
    with pytest.raises(DuplicateRequestId):
        offline.engine.add_request("a", HELLO, GREEDY)
    run(offline)
    offline.engine.add_request("a", HELLO, GREEDY)
    assert run(offline)[-1][0].outputs[0].finish_reason == "length"


def test_what_the_core_refuses_is_an_error_of_that_request() -> None:
    offline = OfflineEngine(num_blocks=4)
    offline.engine.add_request("a", [ABC] * 40, GREEDY)
    offline.engine.add_request("b", HELLO, GREEDY)
    first, *_, last = run(offline)
    assert [(output.request_id, type(output.error)) for output in first] == [("a", PromptNeverFits)]
    assert [(output.request_id, output.outputs[0].finish_reason) for output in last] == [("b", "length")]
    offline.assert_empty()


def test_an_aborted_request_is_silent_and_frees_its_blocks() -> None:
    offline = OfflineEngine()
    for request_id in "abc":
        offline.engine.add_request(request_id, HELLO, GREEDY)
    offline.engine.step()
    offline.engine.abort_request("b")
    offline.engine.abort_request(["c", "unknown"])
    assert [[output.request_id for output in step] for step in run(offline)] == [["a"], ["a"]]
    offline.assert_empty()


def test_an_engine_that_failed_says_so_from_then_on() -> None:
    offline = OfflineEngine()
    offline.engine.add_request("a", HELLO, GREEDY)

    def fail() -> None:
        raise MemoryError("injected")

    offline.executor.during_step = fail
    with pytest.raises(EngineDeadError, match="MemoryError: injected"):
        offline.engine.step()
    assert not offline.engine.has_unfinished_requests()
    for call in (offline.engine.step, lambda: offline.engine.add_request("b", HELLO, GREEDY)):
        with pytest.raises(EngineDeadError, match="MemoryError: injected"):
            call()


def test_a_prefix_is_computed_once_until_it_is_forgotten() -> None:
    offline = OfflineEngine()
    cached = []
    for forget in (False, False, True):
        if forget:
            assert offline.engine.reset_prefix_cache()
        offline.engine.add_request("a", [ABC] * 9, GREEDY)
        cached.append(run(offline)[-1][0].num_cached_tokens)
    assert cached == [0, 8, 0]
    assert offline.engine.stats().num_steps_total == 9
