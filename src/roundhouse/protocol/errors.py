"""The one tree of errors that cross a process or reach a client.

    RoundhouseError
    ├── RequestError                 the request is at fault; the same request fails again
    │   ├── InvalidRequest           a field is missing, mistyped or out of range
    │   ├── ContextLengthExceeded    the prompt does not fit the model
    │   ├── PromptNeverFits          the prompt does not fit the engine's KV cache, however empty
    │   ├── RequestTooLarge          the body is over a limit of `protocol.limits`
    │   ├── ModelNotFound
    │   ├── EngineNotFound           what an operator named is not here
    │   ├── Forbidden                the caller may not do this
    │   ├── Unauthenticated          the API key is missing or not valid
    │   └── DuplicateRequestId       that id is live
    ├── CapacityError                nothing is wrong with the request; later it may work
    │   ├── NoEngine                 no engine is admitted
    │   └── ShuttingDown
    ├── EngineError
    │   ├── EngineDeadError          the engine that held the request is gone
    │   ├── EngineGenerateError      the engine lives, this one request failed in it
    │   └── RequestPoisoned          engine after engine was lost with this request and gave no token
    ├── WireError
    │   ├── MalformedFrame           bytes that no peer of ours would send
    │   └── MessageTooLarge
    ├── ModelError                   what MODEL names cannot be had or read (leaves in `model_store.errors`)
    └── ConfigError                  a flag or a setting is wrong; said in one line, exit code 2

Each class carries its wire code, its HTTP status and whether a retry of the same request can help.
"""

from __future__ import annotations

from typing import ClassVar


class RoundhouseError(Exception):
    """The root. `param` names the request's field at fault, when there is one."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    retry_helps: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestError(RoundhouseError):
    code = "request_error"
    http_status = 400


class InvalidRequest(RequestError):
    code = "invalid_request"


class ContextLengthExceeded(RequestError):
    code = "context_length_exceeded"


class PromptNeverFits(RequestError):
    code = "prompt_never_fits"


class RequestTooLarge(RequestError):
    code = "request_too_large"
    http_status = 413


class ModelNotFound(RequestError):
    code = "model_not_found"
    http_status = 404


class EngineNotFound(RequestError):
    code = "engine_not_found"
    http_status = 404


class Forbidden(RequestError):
    code = "forbidden"
    http_status = 403


class Unauthenticated(RequestError):
    code = "invalid_api_key"
    http_status = 401


class DuplicateRequestId(RequestError):
    code = "duplicate_request_id"
    http_status = 409


class CapacityError(RoundhouseError):
    code = "capacity_error"
    http_status = 503
    retry_helps = True


class NoEngine(CapacityError):
    code = "no_engine"


class ShuttingDown(CapacityError):
    code = "shutting_down"


class EngineError(RoundhouseError):
    code = "engine_error"


class EngineDeadError(EngineError):
    code = "engine_dead"
    http_status = 503
    retry_helps = True


class EngineGenerateError(EngineError):
    code = "engine_generate_error"


class RequestPoisoned(EngineError):
    code = "request_poisoned"


class WireError(RoundhouseError):
    code = "wire_error"


class MalformedFrame(WireError):
    code = "malformed_frame"


class MessageTooLarge(WireError):
    code = "message_too_large"
    http_status = 413


class ModelError(RoundhouseError):
    code = "model_error"


class ConfigError(RoundhouseError):
    code = "config_error"


def error_from_code(code: str, message: str, *, param: str | None = None) -> RoundhouseError:
    """The error a peer named by its wire code; an unknown code (a newer peer) is an `EngineGenerateError`."""
    return _LEAVES_BY_CODE.get(code, EngineGenerateError)(message, param=param)


def _all_subclasses(root: type[RoundhouseError]) -> list[type[RoundhouseError]]:
    return [root] + [leaf for child in root.__subclasses__() for leaf in _all_subclasses(child)]


_LEAVES_BY_CODE: dict[str, type[RoundhouseError]] = {cls.code: cls for cls in _all_subclasses(RoundhouseError)}
