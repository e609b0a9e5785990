"""An image run as `docker run --read-only --network host` does, by an OCI runtime alone, without a daemon."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from tests.support.image_builder import IMAGE, buildah, image_config, runtime

READY_TIMEOUT_S = 120.0
_NAMESPACES = ("pid", "ipc", "uts", "mount")  # not network: traffic stays on the loopback address
_MASKED = ("/proc/kcore", "/proc/keys", "/proc/sched_debug", "/proc/timer_list", "/sys/firmware")


class Container:
    """The image's own command at 127.0.0.1:`port`, with no place to write but /dev/shm. Ends with the block."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "log"
        self.config = image_config()
        self._bundle = folder
        self._variables = {"ROUNDHOUSE_HOST": "127.0.0.1", "ROUNDHOUSE_PORT": str(port)}
        self._name = f"roundhouse-test-{uuid.uuid4().hex[:12]}"
        self._buildah_name = ""
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        self._buildah_name = buildah("from", "--pull-never", IMAGE)
        try:
            root = str(Path(buildah("mount", self._buildah_name)).resolve())
            bundle = oci_config(self.config, root, self._variables)
            (self._bundle / "config.json").write_text(json.dumps(bundle))
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(
                    self._runtime("run", "--bundle", str(self._bundle), self._name),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self.wait_until(lambda: self._health() == 200, "health")
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._clean_up()

    def processes(self) -> list[psutil.Process]:
        """Those of the container, its pid 1 first."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def engines(self) -> list[psutil.Process]:
        return [process for process in self.processes() if "engine" in process.cmdline()]

    def terminate(self) -> None:
        """SIGTERM for pid 1, by way of the runtime, as `docker stop` does it."""
        self.process.send_signal(signal.SIGTERM)

    def execute(self, *command: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs `command` inside to its end; as the image's user unless another is named."""
        as_user = ["--user", user] if user else []
        return subprocess.run(
            self._runtime("exec", *as_user, self._name, *command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Fails with the container's log when it ends before `condition` holds, or when that takes too long."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                log = self.log.read_text(errors="replace")
                raise AssertionError(f"no {what}; exit code {self.process.poll()}; log:\n{log}")
            time.sleep(0.1)

    def _health(self) -> int:
        try:
            return httpx.get(f"{self.url}/health").status_code
        except httpx.TransportError:
            return 0

    def _runtime(self, *arguments: str) -> list[str]:
        path = runtime()
        assert path is not None
        return [path, "--root", str(self._bundle / "state"), *arguments]

    def _clean_up(self) -> None:
        if hasattr(self, "process"):
            subprocess.run(self._runtime("delete", "--force", self._name), capture_output=True)
            self.process.wait(30)
        buildah("umount", self._buildah_name)
        buildah("rm", self._buildah_name)


def oci_config(image: Mapping[str, Any], root: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """The runtime's config.json for an image's config: its own command and user, read-only, no capability."""
    uid, gid = map(int, image["User"].split(":"))
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": uid, "gid": gid},
            "args": [*image["Entrypoint"], *image["Cmd"]],
            "env": [*image["Env"], *(f"{name}={value}" for name, value in variables.items())],
            "cwd": image["WorkingDir"],
            "noNewPrivileges": True,
        },
        "root": {"path": root, "readonly": True},
        "mounts": [
            _mount("/proc", "proc"),
            _mount("/dev", "tmpfs", "mode=755", "size=65536k"),
            _mount("/dev/pts", "devpts", "newinstance", "ptmxmode=0666", "mode=0620"),
            _mount("/dev/shm", "tmpfs", "noexec", "nodev", "mode=1777", "size=65536k"),
            _mount("/sys", "sysfs", "noexec", "nodev", "ro"),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in _NAMESPACES],
            "maskedPaths": list(_MASKED),
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }


def _mount(target: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": kind, "options": ["nosuid", *options]}
