from roundhouse.model_store import errors
from roundhouse.protocol.errors import ModelError


def test_each_leaf_has_a_code_of_its_own() -> None:
    leaves = ModelError.__subclasses__()
    assert {leaf.code for leaf in leaves} == {
        "model_unavailable",
        "model_folder_invalid",
        "hub_unreachable",
        "hub_access_denied",
        "cache_unusable",
        "conversion_failed",
        "tokenizer_invalid",
        "invalid_text",
        "chat_template_missing",
        "chat_template_invalid",
        "chat_template_error",
    }
    assert len(leaves) == 11


def test_what_a_request_caused_is_the_requests_fault() -> None:
    assert {leaf.code for leaf in ModelError.__subclasses__() if leaf.http_status == 400} == {
        "invalid_text",
        "chat_template_missing",
        "chat_template_error",
    }


def test_only_the_network_comes_back_by_itself() -> None:
    assert [leaf for leaf in ModelError.__subclasses__() if leaf.retry_helps] == [errors.HubUnreachable]
