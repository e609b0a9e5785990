"""The rules that every struct of the wire keeps, whatever is added to the list."""

import msgspec
import pytest

from roundhouse.protocol import messages
from roundhouse.protocol.messages import EngineCoreOutput
from roundhouse.protocol.sampling import FinishReason, SamplingParams

STRUCTS = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
REQUIRED = {
    "EngineCoreRequest": ["request_id", "prompt_token_ids", "sampling_params", "arrival_time"],
    "AbortRequests": ["request_ids"],
    "StartDPWave": ["wave"],
    "UtilityRequest": ["call_id", "method"],
    "Ping": ["frontend_instance", "last_control_number"],
    "Admitted": ["frontend_instance", "session_id", "engine_index", "protocol_version", "max_message_bytes"],
    "Refused": ["reason", "message"],
    "LogprobsLists": ["token_ids", "logprobs", "ranks"],
    "PromptLogprobs": ["token_ids", "logprobs", "ranks"],
    "EngineCoreEvent": ["type", "timestamp"],
    "OutputError": ["code", "message"],
    "EngineCoreOutput": ["request_id", "attempt", "first_token_index", "new_token_ids"],
    "UtilityOutput": ["call_id"],
    "Hello": [
        *("identity", "epoch", "nonce", "protocol_versions", "model", "resume_key", "block_size", "num_blocks"),
        *("max_model_len", "max_num_seqs", "max_message_bytes"),
    ],
    "Draining": ["session_id", "reason", "leaves_in_s"],
    "Pong": ["session_id", "ping_number", "last_control_number", "last_output_number", "load"],
    "Died": ["session_id", "message"],
    "PoolingParams": [],
    "SamplingParams": [],
    "SchedulerStats": [],
    "EngineCoreOutputs": [],
}
"""The fields without a default, first in their struct since version 1; a later field has one."""


def test_no_struct_is_left_out() -> None:
    assert {kind.__name__ for kind in STRUCTS} == set(REQUIRED)
    assert SamplingParams in STRUCTS


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_a_struct_is_an_array_that_never_changes_and_is_not_tracked(kind: type[msgspec.Struct]) -> None:
    config = kind.__struct_config__
    assert (config.array_like, config.frozen, config.gc) == (True, True, False)
    # A tag would take a place in the array, and a field that is unknown is what a newer peer appended.
    assert (config.tag, config.forbid_unknown_fields) == (None, False)


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_fields_with_defaults_come_last(kind: type[msgspec.Struct]) -> None:
    required = REQUIRED[kind.__name__]
    assert [field.name for field in msgspec.structs.fields(kind) if field.required] == required
    assert list(kind.__struct_fields__[: len(required)]) == required


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_no_two_values_share_a_default_that_can_be_changed(kind: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(kind):
        if field.default is not msgspec.NODEFAULT:
            hash(field.default)


@pytest.mark.parametrize("reason", [None, *FinishReason])
def test_an_output_is_the_last_one_when_it_has_a_reason(reason: FinishReason | None) -> None:
    assert EngineCoreOutput("r", 0, 0, [1], reason).finished is (reason is not None)
