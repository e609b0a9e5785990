"""A model repository on the Hugging Face hub → its folder in the hub client's own cache.

Asks for the file list first, under one deadline for everything (the client's timeouts start after name resolution and
count per address), so that no network is one line within five seconds and an unusable repository costs no download.
"""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundhouse.model_store.errors import (
    CacheUnusable,
    HubAccessDenied,
    HubUnreachable,
    ModelFolderInvalid,
    ModelUnavailable,
)
from roundhouse.model_store.folder import SLOW_TOKENIZERS, hint, is_weight_file, missing_parts
from roundhouse.model_store.progress import ProgressEvent, Report
from roundhouse.protocol.errors import ModelError

ANSWER_WITHIN_S = 4.5

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EFBIG)
_SLOW_TOKENIZER_FILES = {name for group in SLOW_TOKENIZERS for name in group}


def fetch(
    repo_id: str,
    *,
    revision: str | None,
    weights: bool,
    report: Report,
    endpoint: str | None = None,
    hub_cache: Path | None = None,
) -> Path:
    """Downloads what is not in the cache yet, and falls back to the cache alone when the hub does not answer."""
    # Not at the top: 0.4 s that a start from a folder need not pay.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    request: dict[str, Any] = {"repo_id": repo_id, "revision": revision, "endpoint": endpoint, "cache_dir": hub_cache}
    try:
        listing = _list_files(repo_id, revision, endpoint)
    except HubUnreachable as unreachable:
        try:
            return Path(snapshot_download(**request, local_files_only=True, allow_patterns=_patterns(weights)))
        except LocalEntryNotFoundError:
            raise unreachable from None
    missing = missing_parts(set(listing), weights=weights)
    if missing:
        raise ModelFolderInvalid(f"{repo_id} on the hub has no {', no '.join(missing)}{hint(set(listing))}")
    wanted = {name: size for name, size in listing.items() if _is_wanted(name, weights)}
    bars = _bars_for(ProgressEvent(f"downloading {repo_id}", total=sum(wanted.values())), report)
    try:
        return Path(snapshot_download(**request, allow_patterns=sorted(wanted), tqdm_class=bars))
    except Exception as error:  # the client lets its HTTP library's errors through, which are not ours to know
        raise _explain(repo_id, error) from error


def _list_files(repo_id: str, revision: str | None, endpoint: str | None) -> dict[str, int]:
    """Names and sizes of the repository's top-level files. The thread is left behind if the hub never answers it."""
    from huggingface_hub import HfApi

    answer: list[dict[str, int]] = []
    failure: list[Exception] = []

    def ask() -> None:
        try:
            info = HfApi(endpoint=endpoint).model_info(
                repo_id, revision=revision, files_metadata=True, timeout=ANSWER_WITHIN_S
            )
            answer.append({file.rfilename: file.size or 0 for file in info.siblings or [] if "/" not in file.rfilename})
        except Exception as error:  # handed to the waiting thread, which judges it
            failure.append(error)

    asking = threading.Thread(target=ask, name="hub-listing", daemon=True)
    asking.start()
    asking.join(ANSWER_WITHIN_S)
    if failure:
        raise _explain(repo_id, failure[0]) from failure[0]
    if not answer:
        raise HubUnreachable(f"{repo_id} is not on this machine and the hub gave no answer in {ANSWER_WITHIN_S} s")
    return answer[0]


def _explain(repo_id: str, error: Exception) -> ModelError:
    """The client's error as one of ours. The hub answers alike for missing and for private repositories."""
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return HubUnreachable(f"{repo_id} is not on this machine and HF_HUB_OFFLINE forbids to ask the hub for it")
    if isinstance(error, errors.GatedRepoError):
        return HubAccessDenied(f"{repo_id} is gated: accept its terms on the hub and set HF_TOKEN")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelUnavailable(
            f"there is no folder {repo_id} here, and on the hub no such model or one that HF_TOKEN does not open"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelUnavailable(f"{repo_id} has no such revision on the hub")
    if isinstance(error, errors.HFValidationError):
        return ModelUnavailable(f"{repo_id} is neither a folder here nor a name that the hub allows")
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return CacheUnusable(
            f"the hub client's cache cannot be written: {error.strerror}; set HF_HOME to a folder with room"
        )
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return HubAccessDenied(f"the hub refuses {repo_id} (HTTP {status}): check HF_TOKEN")
    reason = f"HTTP {status}" if status else " ".join(str(error).split())[:200] or type(error).__name__
    return HubUnreachable(f"there is no folder {repo_id} here, and the hub cannot be asked for it: {reason}")


def _is_wanted(name: str, weights: bool) -> bool:
    """Never .bin, .pt or .py; the index names files that a frontend does not have, so it goes with the weights."""
    if name.endswith((".safetensors", ".safetensors.index.json")):
        return weights and (is_weight_file(name) or name.endswith(".json"))
    return name.endswith((".json", ".jinja")) or name in _SLOW_TOKENIZER_FILES


def _patterns(weights: bool) -> list[str]:
    """What must be in the cache for it to do without the hub: the client compares with the listing it keeps."""
    return ["config.json", "tokenizer.json", "tokenizer_config.json", *(["model*.safetensors"] if weights else [])]


def _bars_for(start: ProgressEvent, report: Report) -> type:
    """A class in the place of tqdm's: the client makes several bars and ours turns those that count bytes into
    events.
    """

    @dataclass
    class ByteBar:
        n: float
        total: float | None
        counts_bytes: bool

        def __init__(self, *_args: object, total: float | None = None, unit: str = "it", **_kwargs: object) -> None:
            self.n, self.total, self.counts_bytes = 0, total, unit == "B"

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self.counts_bytes:
                done = min(int(self.n), start.total)
                report(ProgressEvent(start.stage, done, start.total))

        def __enter__(self) -> ByteBar:
            return self

        def __exit__(self, *exc: object) -> None:
            return None

        @property
        def format_dict(self) -> dict[str, None]:
            return {"rate": None}

        def __getattr__(self, name: str) -> Any:
            """Everything else that draws."""
            return lambda *args, **kwargs: None

    return ByteBar
