"""Lists of prompts in, lists of answers out: shapes of arguments, order, failures, interruptions."""

import signal

import pytest

from roundhouse.model_store import ChatTemplate
from roundhouse.offline.llm import LLM
from roundhouse.protocol.errors import EngineDeadError, EngineGenerateError, InvalidRequest
from roundhouse.protocol.sampling import SamplingParams
from tests.support.offline_engine import TOKENIZER, OfflineEngine
from tests.support.small_tokenizers import ids_of

ABC, DEF, GHI = ids_of(TOKENIZER, "ABC", "DEF", "GHI")
HELLO = ids_of(TOKENIZER, "Hello", ".")
GREEDY = SamplingParams(temperature=0.0, max_tokens=2)
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"


def llm_of(**parts):
    offline = OfflineEngine(**parts)
    return LLM.with_engine(offline.engine, ChatTemplate({"default": TEMPLATE}, {})), offline


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("Hello.", ["Hello."]),
        (HELLO, [None]),
        ({"prompt_token_ids": HELLO}, [None]),
        ({"prompt": "Hello."}, ["Hello."]),
        (["Hello.", HELLO, {"prompt_token_ids": HELLO}], ["Hello.", None, None]),
        ((prompt for prompt in ["Hello.", "the"]), ["Hello.", "the"]),
        ([], []),
    ],
)
def test_one_prompt_or_several(prompts, expected) -> None:
    llm, offline = llm_of()
    assert [output.prompt for output in llm.generate(prompts, GREEDY)] == expected
    offline.assert_empty()


def test_answers_come_in_the_order_of_the_prompts_with_their_own_params() -> None:
    llm, _ = llm_of(script={"0": [ABC, ABC, ABC], "1": [DEF], "2": [GHI, GHI]})
    params = [SamplingParams(temperature=0.0, max_tokens=count) for count in (3, 1, 2)]
    outputs = llm.generate([HELLO] * 3, params)
    assert [output.outputs[0].text for output in outputs] == ["ABCABCABC", "DEF", "GHIGHI"]


def test_without_params_the_model_decides() -> None:
    llm, _ = llm_of(script={"0": [ABC] * 20})
    assert llm.get_default_sampling_params() == SamplingParams()
    (output,) = llm.generate(HELLO)
    assert output.outputs[0].token_ids == [ABC] * 16


def test_priorities_order_the_waiting() -> None:
    llm, offline = llm_of(policy="priority", max_num_seqs=1)
    order = []
    step = offline.engine.step

    def watched_step():
        outputs = step()
        order.extend(output.request_id for output in outputs)
        return outputs

    offline.engine.step = watched_step
    llm.generate([HELLO] * 3, GREEDY, priority=[2, 0, 1])
    assert order == ["1", "2", "0"]


def test_a_prompt_that_cannot_run_is_named_and_none_is_run() -> None:
    llm, offline = llm_of()
    with pytest.raises(InvalidRequest, match=r"prompts\[1\]: .*empty"):
        llm.generate([HELLO, "", HELLO], GREEDY)
    offline.assert_empty()
    assert offline.core.stats().num_steps_total == 0


@pytest.mark.parametrize("arguments", [{"sampling_params": [GREEDY]}, {"priority": [1, 2, 3]}])
def test_lists_that_do_not_match_are_refused(arguments) -> None:
    llm, offline = llm_of()
    with pytest.raises(InvalidRequest, match=r"entries for 2 prompts"):
        llm.generate([HELLO, HELLO], **arguments)
    offline.assert_empty()


@pytest.mark.parametrize("wrong", [{"temperature": 0}, [None, None], [{}, {}]])
def test_params_that_are_none_of_ours_are_refused(wrong) -> None:
    llm, offline = llm_of()
    with pytest.raises(InvalidRequest, match="sampling_params"):
        llm.generate([HELLO, HELLO], wrong)
    offline.assert_empty()


def test_params_may_come_from_a_generator() -> None:
    llm, _ = llm_of()
    assert len(llm.generate([HELLO, HELLO], (GREEDY for _ in range(2)))) == 2  # type: ignore[arg-type]


def test_what_a_prompt_cannot_have_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"prompts\[0\]: a prompt has no 'multi_modal_data'"):
        llm_of()[0].generate({"prompt": "Hello", "multi_modal_data": {"image": 1}}, GREEDY)


@pytest.mark.parametrize("raw", [b"Hello", bytearray(b"Hello"), {"prompt_token_ids": b"Hello"}])
def test_bytes_are_no_token_ids(raw) -> None:
    with pytest.raises(InvalidRequest, match="a prompt is a text or a list of token ids"):
        llm_of()[0].generate([raw], GREEDY)


def test_requests_that_somebody_added_are_not_swallowed() -> None:
    llm, offline = llm_of()
    offline.engine.add_request("mine", HELLO, GREEDY)
    with pytest.raises(InvalidRequest, match="requests of its own"):
        llm.generate(HELLO, GREEDY)
    while offline.engine.has_unfinished_requests():
        last = offline.engine.step()
    assert [output.request_id for output in last] == ["mine"]


def test_no_prompt_at_all_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        llm_of()[0].generate(None)  # type: ignore[arg-type]


def test_a_request_that_fails_has_its_error_and_the_others_their_answers() -> None:
    llm, offline = llm_of(script={"0": [ABC, ABC], "2": [DEF, DEF]}, fail={"1": "the sampler choked"})
    outputs = llm.generate([HELLO] * 3, GREEDY)
    assert [output.outputs[0].text for output in outputs] == ["ABCABC", "", "DEFDEF"]
    assert [type(output.error) for output in outputs] == [type(None), EngineGenerateError, type(None)]
    offline.assert_empty()


def test_an_engine_that_fails_raises() -> None:
    llm, offline = llm_of()

    def fail() -> None:
        raise OSError("injected")

    offline.executor.during_step = fail
    with pytest.raises(EngineDeadError, match="injected"):
        llm.generate(HELLO, GREEDY)


def test_an_interruption_waits_for_the_step_and_ends_every_request() -> None:
    llm, offline = llm_of(max_num_seqs=1)
    offline.executor.during_step = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([HELLO] * 3, GREEDY)
    offline.assert_empty()
    assert offline.core.stats().num_steps_total == 1
    offline.executor.during_step = lambda: None
    assert len(llm.generate([HELLO] * 3, GREEDY)) == 3


def test_chat_renders_one_conversation_or_several() -> None:
    llm, _ = llm_of()
    conversation = [
        {"role": "system", "content": [{"type": "text", "text": "ABC"}, {"type": "text", "text": "DEF"}]},
        {"role": "user", "content": "Hello"},
    ]
    (one,) = llm.chat(conversation, GREEDY)
    assert one.prompt == "<system>ABC\nDEF<user>Hello>"
    several = llm.chat([conversation[1:], [{"role": "user", "content": "the"}]], GREEDY, add_generation_prompt=False)
    assert [output.prompt for output in several] == ["<user>Hello", "<user>the"]


def test_the_tokenizer_is_the_models() -> None:
    assert llm_of()[0].get_tokenizer() is TOKENIZER
