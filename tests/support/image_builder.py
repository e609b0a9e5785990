"""The root Dockerfile built by buildah, in a storage of its own below build/: other images here stay as they are.

Needs root (buildah's chroot isolation without a user namespace) and an OCI runtime to run what was built. Behind a
mirror it works as pip does on this machine: its configuration file, its index variables and the CA bundle go into the
build, read-only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STORAGE = ROOT / "build" / "containers"
BASE = "python:3.11-slim-bookworm"
OWN_BASE = "localhost/python:3.11-slim-bookworm"
IMAGE = "localhost/roundhouse:test"
RUNTIMES = ("runc", "crun")

_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_CONF_TARGET = "/etc/pip.conf"
_INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "TORCH_INDEX_URL")
_BUILD_TIMEOUT_S = 1200
_PULL_TIMEOUT_S = 120


def why_not_here() -> str | None:
    """What this machine lacks, or None when an image can be built and run on it."""
    if shutil.which("buildah") is None:
        return "buildah is not installed"
    if runtime() is None:
        return f"no OCI runtime is installed ({' or '.join(RUNTIMES)})"
    if os.geteuid() != 0:
        return "buildah with chroot isolation needs root"
    return None


def runtime() -> str | None:
    """Path of the first OCI runtime there is."""
    return next(filter(None, map(shutil.which, RUNTIMES)), None)


def build_image(build_args: Mapping[str, str]) -> None:
    """Leaves `IMAGE`; what did not change since the last build is taken from its layers."""
    arguments = ["--isolation", "chroot", "--network", "host", "--pull=never", "--layers", "--format", "docker"]
    given = {name: os.environ[name] for name in _INDEX_VARIABLES if name in os.environ}
    for name, value in {"PYTHON_IMAGE": _base_image(), **given, **build_args}.items():
        arguments += ["--build-arg", f"{name}={value}"]
    for source, target in _mirror_files().items():
        arguments += ["--volume", f"{source}:{target}:ro"]
    # A name for the layers that last, so that --prune below leaves them.
    buildah("build", *arguments, "--target", "dependencies", "--tag", f"{IMAGE}-dependencies", str(ROOT))
    buildah("build", *arguments, "--tag", IMAGE, str(ROOT))
    buildah("rmi", "--prune", "--force")


def image_config() -> dict[str, Any]:
    """The image's `Config`: Docker's names, which also hold its health check."""
    return json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]


def buildah(*arguments: str, timeout_s: float = _BUILD_TIMEOUT_S) -> str:
    """What it prints on stdout. Raises `RuntimeError` with the last lines it said when it fails."""
    command = ["buildah", "--root", str(STORAGE / "storage"), "--runroot", str(STORAGE / "run"), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout.strip()


def _base_image() -> str:
    """The Dockerfile's own base where it can be had, or else a Debian with the same Python, made from packages."""
    for image in (BASE, OWN_BASE):
        if _has(image):
            return image
    try:
        buildah("pull", "--quiet", BASE, timeout_s=_PULL_TIMEOUT_S)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        if shutil.which("mmdebstrap") is None:
            raise RuntimeError(f"{BASE} cannot be pulled, and there is no mmdebstrap to make its like") from error
        _make_base()
        return OWN_BASE
    return BASE


def _make_base() -> None:
    archive = STORAGE / "base.tar"
    packages = "python3,python3-venv,ca-certificates"
    command = ["mmdebstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(archive)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(archive), "/")
    buildah("commit", "--quiet", "--rm", container, OWN_BASE)
    archive.unlink()


def _has(image: str) -> bool:
    try:
        buildah("inspect", "--type", "image", image)
    except RuntimeError:
        return False
    return True


def _mirror_files() -> dict[str, str]:
    """Source → target of the files by which pip reaches its index from here; none where it needs none."""
    homes = (os.environ.get("XDG_CONFIG_HOME"), "~/.config")
    candidates = [
        os.environ.get("PIP_CONFIG_FILE"),
        *(f"{home}/pip/pip.conf" for home in homes if home),
        "~/.pip/pip.conf",
        "/etc/pip.conf",
    ]
    files = [path for path in (Path(name).expanduser() for name in candidates if name) if path.is_file()]
    found = {str(files[0].resolve()): _PIP_CONF_TARGET} if files else {}
    if _CA_BUNDLE.is_file():
        found[str(_CA_BUNDLE.resolve())] = str(_CA_BUNDLE)
    return found
