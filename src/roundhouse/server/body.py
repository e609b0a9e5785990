"""A request's body, counted while it arrives."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from roundhouse.protocol.errors import InvalidRequest, RequestTooLarge


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises `InvalidRequest` for another content type than JSON, `RequestTooLarge` as soon as it is
    too large (whatever Content-Length says or fails to say), `ClientDisconnect` when the client leaves first."""
    _check_content_type(request.headers.get("content-type"))
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _check_content_type(content_type: str | None) -> None:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    if not is_json:
        raise InvalidRequest("The request needs the header Content-Type: application/json", param="content-type")


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The request body is larger than {max_bytes} bytes")
