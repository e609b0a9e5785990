"""The metrics as a scraper asks for them: Prometheus' text format, or OpenMetrics for who accepts it."""

from __future__ import annotations

from fastapi import Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


def exposition(registry: CollectorRegistry, accept: str) -> Response:
    """`accept`: the header of that name, from anybody; one that makes no sense gets the text format."""
    try:
        encode, content_type = choose_encoder(accept)
    except Exception:  # the library parses the header and stumbles over versions that are none
        encode, content_type = choose_encoder("")
    return Response(encode(registry), headers={"content-type": content_type})
