from __future__ import annotations

import numpy as np

from roundhouse.protocol.messages import EngineCoreOutput, LogprobsLists, OutputError, PromptLogprobs
from roundhouse.protocol.sampling import FinishReason
from roundhouse.scheduler.step import ModelRunnerOutput
from roundhouse.scheduler.update import advance_request
from tests.support.builders import request

LOGPROBS = LogprobsLists([[5], [0], [6]], [[-1.0], [-2.0], [-3.0]], [1, 1, 1])
PROMPT_LOGPROBS = PromptLogprobs(np.zeros((7, 1), np.int32), np.zeros((7, 1), np.float32), np.ones(7, np.int32))


def test_a_chunk_of_the_prompt_brings_nothing() -> None:
    one = request("a", 8)
    assert advance_request(one, 5, ModelRunnerOutput({}), 100) is None
    assert (one.num_computed_tokens, one.num_tokens) == (5, 8)


def test_a_sampled_token_is_appended_and_told() -> None:
    one = request("a", 8)
    one.num_computed_tokens = 5
    result = ModelRunnerOutput({"0:a": [5]}, prompt_logprobs={"0:a": PROMPT_LOGPROBS})
    assert advance_request(one, 3, result, 100) == EngineCoreOutput("a", 0, 0, [5], prompt_logprobs=PROMPT_LOGPROBS)
    assert (one.num_computed_tokens, one.num_tokens) == (8, 9)


def test_tokens_behind_the_end_are_cut_with_their_logprobs() -> None:
    one = request("a", 8)
    result = ModelRunnerOutput({"0:a": [5, 0, 6]}, logprobs={"0:a": LOGPROBS})
    assert advance_request(one, 8, result, 100) == EngineCoreOutput(
        "a", 0, 0, [5, 0], FinishReason.STOP, new_logprobs=LogprobsLists([[5], [0]], [[-1.0], [-2.0]], [1, 1])
    )
    assert one.output_token_ids == [5, 0]


def test_a_stop_token_is_the_reason() -> None:
    one = request("a", 8, stop_token_ids=[7])
    assert advance_request(one, 8, ModelRunnerOutput({"0:a": [7]}), 100) == EngineCoreOutput(
        "a", 0, 0, [7], FinishReason.STOP, stop_reason=7
    )


def test_prompt_logprobs_are_not_told_twice() -> None:
    one = request("a", 8, outputs=[5, 6])
    result = ModelRunnerOutput({"0:a": [7]}, prompt_logprobs={"0:a": PROMPT_LOGPROBS})
    assert advance_request(one, 10, result, 100) == EngineCoreOutput("a", 0, 2, [7])


def test_a_sampler_that_choked_ends_its_request_alone() -> None:
    one = request("a", 8, outputs=[5])
    assert advance_request(one, 9, ModelRunnerOutput({}, failed={"0:a": "no token is allowed"}), 100) == (
        EngineCoreOutput(
            "a", 0, 1, [], FinishReason.ERROR, error=OutputError("engine_generate_error", "no token is allowed")
        )
    )
    assert one.num_computed_tokens == 0


def test_a_missing_token_is_an_error_and_no_hang() -> None:
    output = advance_request(request("a", 8), 8, ModelRunnerOutput({}), 100)
    assert output is not None
    assert output.error == OutputError("engine_generate_error", "the model runner returned no token")
