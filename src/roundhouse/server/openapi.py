"""The request schemas in /openapi.json: bodies are decoded by msgspec, which knows their JSON Schema as well."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI

_REF_TEMPLATE = "#/components/schemas/{name}"


def request_body(body: type[msgspec.Struct]) -> dict[str, Any]:
    """For a route's `openapi_extra`."""
    schema = {"$ref": _REF_TEMPLATE.format(name=body.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def add_schemas(app: FastAPI, bodies: tuple[type[msgspec.Struct], ...]) -> None:
    """Makes the app's OpenAPI document carry what `request_body` refers to."""
    make_document = app.openapi

    def openapi() -> dict[str, Any]:
        document = make_document()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        # FastAPI's own refusal of a parameter; no route of ours has one that it could refuse.
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        schemas.update(msgspec.json.schema_components(bodies, ref_template=_REF_TEMPLATE)[1])
        return document

    app.openapi = openapi
