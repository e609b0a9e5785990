"""The server under test: `roundhouse serve` as a real process, out of the reach of this terminal's Ctrl-C."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from tests.soak.http_client import Address
from tests.support.serve_process import COMMAND, ServeProcess

BLOCK_SIZE = 16
NUM_KV_BLOCKS = 512
"""Of each engine: some 8,000 tokens. Few enough to be filled in seconds before the load begins, so that no
block's pages are taken later, which would look like a leak; enough that the streams mostly run side by side,
and so few that requests preempt each other now and then."""

MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 64
"""Rows of an engine's batch. A row that a request does not give back is missed after so many requests."""

TROUBLE = (" ERROR ", " CRITICAL ", "Traceback (most recent call last)")


class SoakServer(ServeProcess):
    """Ends with the block, as every `ServeProcess`."""

    def __init__(self, log: Path, model: str, engines: int) -> None:
        self.log = log
        self.url = ""
        sizes = ["--num-kv-blocks", NUM_KV_BLOCKS, "--block-size", BLOCK_SIZE, "--max-model-len", MAX_MODEL_LEN]
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", model, "--port", "0", "--engines", str(engines), "--served-model-name", model]
                + [str(part) for part in (*sizes, "--max-num-seqs", MAX_NUM_SEQS)],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
                process_group=0,
            )

    @property
    def address(self) -> Address:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return Address(parts.hostname, parts.port)

    def troubled_lines(self) -> list[str]:
        return [line for line in self.log.read_text(errors="replace").splitlines() if any(t in line for t in TROUBLE)]

    def lines_of(self, request_ids: Iterable[str]) -> dict[str, list[str]]:
        """The last lines of the log that name each request."""
        lines = self.log.read_text(errors="replace").splitlines()
        return {
            id_: [line for line in lines if f"-{id_}-" in line or f"-{id_}:" in line or line.endswith(id_)][-10:]
            for id_ in request_ids
        }
