"""The parent's end of `convert`: starts it as a process, passes on its progress, raises what its last words name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import roundhouse
from roundhouse.model_store.errors import CacheUnusable, ConversionFailed
from roundhouse.model_store.progress import ProgressEvent, Report
from roundhouse.protocol.errors import ModelError

_SOURCE_ROOT = Path(roundhouse.__file__).parent.parent
_ERRORS: dict[str, type[ModelError]] = {cls.code: cls for cls in (CacheUnusable, ConversionFailed)}


def run_converter(kind: str, source: Path, folder: Path, *, lock_fd: int, report: Report) -> None:
    """Blocks until the process has filled `folder`; raises the error it names. Whatever ends the wait ends the process.

    The process inherits `lock_fd`: should we be killed, the lock stays taken until the kernel has ended it too.
    """
    arguments = [kind, str(source), str(folder), str(os.getpid())]
    command = [sys.executable, "-P", "-m", "roundhouse.model_store.convert", *arguments]
    # Beside the folder, which can be written: a pod may have no /tmp.
    with tempfile.TemporaryFile(dir=folder.parent) as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=(lock_fd,),
            env=_environment(),
        )
        try:
            last_words = _follow(process, report)
            status = process.wait()
        finally:
            process.kill()
            process.wait()
        if status != 0:
            raise last_words or ConversionFailed(f"converting {source} failed: {_why_it_ended(status, log)}")


def _follow(process: subprocess.Popen[bytes], report: Report) -> ModelError | None:
    last_words: ModelError | None = None
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # cut off by the end of the process, which tells its own story
            if "error" in event:
                last_words = _ERRORS.get(event["error"], ConversionFailed)(event["message"])
            else:
                report(ProgressEvent(event["stage"], event.get("done", 0), event.get("total", 0)))
    return last_words


def _environment() -> dict[str, str]:
    """Ours, with this package importable however we came by it, and no network: everything to read is on the disk."""
    path = os.pathsep.join(filter(None, (str(_SOURCE_ROOT), os.environ.get("PYTHONPATH"))))
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    return {**os.environ, **offline, "PYTHONPATH": path}


def _why_it_ended(status: int, log: IO[bytes]) -> str:
    if status == -signal.SIGKILL:
        return "the converter was killed, which usually means that memory ran out"
    log.seek(0)
    lines = log.read()[-4096:].decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"exit status {status}")
