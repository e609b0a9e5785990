import errno

import pytest
from huggingface_hub import errors as hub_errors

from roundhouse.model_store.errors import CacheUnusable, HubUnreachable, ModelUnavailable
from roundhouse.model_store.hub import _bars_for, _explain, _is_wanted
from roundhouse.model_store.progress import ProgressEvent
from roundhouse.protocol.errors import ModelError


@pytest.mark.parametrize(
    ("name", "with_weights", "without"),
    [
        ("model.safetensors", True, False),
        ("model-00001-of-00002.safetensors", True, False),
        ("model.safetensors.index.json", True, False),
        ("consolidated.safetensors", False, False),
        ("config.json", True, True),
        ("tokenizer.json", True, True),
        ("tokenizer.model", True, True),
        ("merges.txt", True, True),
        ("chat_template.jinja", True, True),
        ("pytorch_model.bin", False, False),
        ("model.pt", False, False),
        ("modeling_evil.py", False, False),
        ("README.md", False, False),
        ("model.Q4.gguf", False, False),
    ],
)
def test_what_is_downloaded(name: str, with_weights: bool, without: bool) -> None:
    assert (_is_wanted(name, True), _is_wanted(name, False)) == (with_weights, without)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            hub_errors.OfflineModeIsEnabled(),
            HubUnreachable,
            "a/b is not on this machine and HF_HUB_OFFLINE forbids to ask the hub for it",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            CacheUnusable,
            "the hub client's cache cannot be written: No space left on device; set HF_HOME to a folder with room",
        ),
        (
            ConnectionResetError(errno.ECONNRESET, "Connection reset\nby peer"),
            HubUnreachable,
            "there is no folder a/b here, and the hub cannot be asked for it: [Errno 104] Connection reset by peer",
        ),
        (
            hub_errors.HFValidationError("x"),
            ModelUnavailable,
            "a/b is neither a folder here nor a name that the hub allows",
        ),
    ],
)
def test_the_clients_errors_become_one_line(error: Exception, kind: type[ModelError], message: str) -> None:
    explained = _explain("a/b", error)
    assert (type(explained), explained.message) == (kind, message)


def test_bars_that_count_bytes_become_events() -> None:
    events: list[ProgressEvent] = []
    bars = _bars_for(ProgressEvent("downloading a/b", total=10), events.append)
    with bars(total=2, desc="Fetching 2 files") as files, bars(unit="B", unit_scale=True, total=0) as data:
        files.update(1)
        data.total += 10
        data.refresh()
        data.set_postfix_str("1 B/s", refresh=False)
        data.update(4)
        data.update(7)
        data.close()
    assert events == [ProgressEvent("downloading a/b", 4, 10), ProgressEvent("downloading a/b", 10, 10)]
