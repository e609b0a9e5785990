"""An application under a real uvicorn on a loopback port, in a thread of the test's process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from roundhouse.cli.http_protocol import BoundedHttpProtocol


@contextmanager
def serving(app: Any, protocol: Any = BoundedHttpProtocol) -> Iterator[int]:
    """The port. Requests wait in the socket's queue until the server takes them, so nobody waits for its start."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        server = uvicorn.Server(uvicorn.Config(app, http=protocol, log_config=None, ws="none", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],), name="uvicorn")
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
