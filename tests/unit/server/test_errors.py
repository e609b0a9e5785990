import msgspec
import pytest

from roundhouse.protocol.errors import (
    ContextLengthExceeded,
    DuplicateRequestId,
    EngineDeadError,
    EngineGenerateError,
    InvalidRequest,
    ModelNotFound,
    NoEngine,
    RequestTooLarge,
)
from roundhouse.server.errors import error_json, error_json_of, retry_headers, shorten


def body(message: str, type: str, param: str | None, code: str | None) -> dict:
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidRequest("no", param="n"), body("no", "invalid_request_error", "n", "invalid_request")),
        (ContextLengthExceeded("long"), body("long", "invalid_request_error", None, "context_length_exceeded")),
        (ModelNotFound("what"), body("what", "NotFoundError", "model", "model_not_found")),
        (RequestTooLarge("big"), body("big", "invalid_request_error", None, "request_too_large")),
        (NoEngine("none"), body("none", "server_error", None, "no_engine")),
        (EngineDeadError("gone"), body("gone", "server_error", None, "engine_dead")),
        (KeyError("secret"), body("The server failed on this request.", "server_error", None, "internal_error")),
    ],
)
def test_every_error_has_openais_shape(error: Exception, expected: dict) -> None:
    assert msgspec.json.decode(error_json_of(error)) == expected


def test_errors_of_the_server_lose_paths_and_addresses() -> None:
    error = EngineGenerateError(
        "<Model object at 0x7f12deadbeef> failed in /opt/models/tiny/model.safetensors (and/or)"
    )
    assert msgspec.json.decode(error_json_of(error)) == body(
        "<Model object at …> failed in … (and/or)", "server_error", None, "engine_generate_error"
    )


def test_a_message_is_bounded() -> None:
    assert len(error_json(400, "x" * 10**6)) < 1200


def test_shorten() -> None:
    assert (shorten("abc", 3), shorten("abcd", 3)) == ("abc", "abc…")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidRequest("no"), {}),
        (NoEngine("none"), {"x-should-retry": "true", "retry-after": "1"}),
        (EngineDeadError("gone"), {"x-should-retry": "true", "retry-after": "1"}),
        (EngineGenerateError("failed"), {"x-should-retry": "false"}),
        (DuplicateRequestId("twice"), {"x-should-retry": "false"}),
    ],
)
def test_sdks_are_told_whether_a_retry_helps(error, expected: dict[str, str]) -> None:
    assert retry_headers(error) == expected
