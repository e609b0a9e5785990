"""Puts a peer into a folder of its own, once: again when what it is made of changes, and after a run that broke off."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.errors import BenchError

_STAMP = "installed.stamp"
_LOG = "install.log"


def install_once(folder: Path, contents: str, fill: Callable[[Path], None]) -> Path:
    """`folder`, made and filled unless its stamp says that it was, here and from the same `contents`.

    The stamp is written last and removed with everything else first. Processes that install the same folder wait for
    each other. What `fill` raises goes on to the caller, and the next call starts over.
    """
    folder = folder.absolute()
    stamp = folder / _STAMP
    wanted = stamp_of(folder, contents)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_text() == wanted:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        fill(folder)
        stamp.write_text(wanted)
    return folder


def stamp_of(folder: Path, contents: str) -> str:
    """The folder is part of it: an environment cannot be moved."""
    return f"{folder}\n{hashlib.sha256(contents.encode()).hexdigest()}\n"


def make_environment(folder: Path, requirements: Sequence[str]) -> Path:
    """The interpreter of a new environment that holds exactly `requirements`, which name all of their dependencies.

    This interpreter's pip puts them there: Debian's python3.11 makes no environment that has its own.
    """
    environment = folder / "env"
    run_step(folder, [sys.executable, "-m", "venv", "--without-pip", str(environment)])
    python = environment / "bin" / "python"
    listed = folder / "requirements.txt"
    listed.write_text("".join(f"{requirement}\n" for requirement in requirements))
    run_step(folder, [*pip("--python", str(python)), "install", "--no-deps", "-r", str(listed)])
    return python


def pip(*options: str) -> list[str]:
    return [sys.executable, "-m", "pip", *options, "--disable-pip-version-check", "--no-input"]


def run_step(folder: Path, command: Sequence[str], *, cwd: Path | None = None) -> None:
    """Runs one command of an installation: a terminal sees its output, otherwise `install.log` in `folder` gets it.

    It ends with this process, however that ends. Raises `BenchError` with its last lines when it fails.
    """
    tied = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    log = folder / _LOG
    output = None if sys.stderr.isatty() else log.open("ab")
    try:
        done = subprocess.run(
            [*tied, *command],
            cwd=cwd,
            env={**environment, "PIP_USER": "0"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    finally:
        if output is not None:
            output.close()
    if done.returncode != 0:
        said = "see the lines above" if output is None else _tail(log)
        raise BenchError(f"{Path(command[0]).name} failed with exit code {done.returncode} in {folder}: {said}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def usable_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _tail(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-5:])[-600:]
