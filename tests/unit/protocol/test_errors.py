from roundhouse.protocol.errors import (
    EngineDeadError,
    EngineGenerateError,
    PromptNeverFits,
    RoundhouseError,
    error_from_code,
)


def all_kinds(root: type[RoundhouseError] = RoundhouseError) -> list[type[RoundhouseError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in all_kinds(child))]


def test_every_wire_code_names_one_error_that_is_written_down_in_the_tree() -> None:
    kinds = [kind for kind in all_kinds() if kind.__module__ == "roundhouse.protocol.errors"]
    assert len({kind.code for kind in kinds}) == len(kinds)
    import roundhouse.protocol.errors as module

    for kind in kinds:
        assert kind.__name__ in (module.__doc__ or "")


def test_an_error_comes_back_from_its_code() -> None:
    error = error_from_code("prompt_never_fits", "too long", param="prompt")
    assert (type(error), error.message, error.param) == (PromptNeverFits, "too long", "prompt")
    assert type(error_from_code("engine_dead", "gone")) is EngineDeadError


def test_the_code_of_a_newer_peer_is_a_failure_of_that_request() -> None:
    assert type(error_from_code("something_new", "?")) is EngineGenerateError
