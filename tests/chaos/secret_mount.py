"""`SecretMount`: a key folder as a kubelet mounts a Secret: all files of one version, swapped at once."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

from roundhouse.transport.last_good import KUBERNETES_DATA


class SecretMount:
    """`folder` shows what `source` held when it was published last; before the first time there is nothing."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder = folder
        self._source = source
        self._versions = count(1)

    def publish(self, changed: dict[str, str] | None = None) -> None:
        """changed: file name → text, in the place of the source's. Without a source what was published stays, as a pod
        keeps what it mounted of a Secret that is gone."""
        if not self._source.is_dir():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        data = self.folder / KUBERNETES_DATA
        before = data.resolve() if data.is_symlink() else None
        version = self.folder / f"..version-{next(self._versions)}"
        shutil.copytree(self._source, version)
        for name, text in (changed or {}).items():
            (version / name).write_text(text)
        link = self.folder / "..data_tmp"
        link.symlink_to(version.name)
        link.replace(data)
        if before is not None:
            shutil.rmtree(before)
