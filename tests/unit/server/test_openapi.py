from roundhouse.server.app import build_app
from tests.support.asgi import get
from tests.support.scripted_llm import SETTINGS, ScriptedLLM, server_state, spell


def test_the_document_describes_every_body() -> None:
    document = get(build_app(server_state(ScriptedLLM(spell("a"))), SETTINGS), "/openapi.json").json
    schemas = document["components"]["schemas"]
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        body = document["paths"][path]["post"]["requestBody"]
        name = body["content"]["application/json"]["schema"]["$ref"].removeprefix("#/components/schemas/")
        assert schemas[name]["properties"]
    assert schemas["FunctionDefinition"]["properties"]["parameters"] == {"type": "object"}
    assert list(document["paths"]["/health"]) == ["get"]
    assert "422" not in document["paths"]["/v1/models/{model_id}"]["get"]["responses"]
    assert {"/v1/models", "/v1/models/{model_id}", "/health", "/version", "/metrics"} <= set(document["paths"])
    assert get(build_app(server_state(ScriptedLLM(spell("a"))), SETTINGS), "/docs").status == 200
