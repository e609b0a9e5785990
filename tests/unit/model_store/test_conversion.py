import os
import signal
import tempfile
from pathlib import Path

import pytest

from roundhouse.model_store.conversion import _why_it_ended, run_converter
from roundhouse.model_store.errors import ConversionFailed
from roundhouse.model_store.progress import ProgressEvent
from tests.unit.model_store import tiny


@pytest.fixture
def lock_fd(tmp_path: Path):
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_progress_arrives_and_the_folder_is_filled(tmp_path: Path, lock_fd: int) -> None:
    source = tiny.write_gguf(tmp_path / "m.gguf", tiny.metadata())
    events: list[ProgressEvent] = []
    (tmp_path / "out").mkdir()
    run_converter("gguf", source, tmp_path / "out", lock_fd=lock_fd, report=events.append)
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert events[0].stage == "converting the weights to safetensors"
    assert events[-1].done == events[-1].total > 0


def test_the_converters_error_is_raised_here(tmp_path: Path, lock_fd: int) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGML")
    with pytest.raises(ConversionFailed) as caught:
        run_converter("gguf", tmp_path / "m.gguf", tmp_path, lock_fd=lock_fd, report=lambda event: None)
    assert caught.value.message == f"{tmp_path / 'm.gguf'} is not a whole GGUF file: it does not begin with GGUF"


def test_modules_in_the_working_folder_are_not_imported(
    tmp_path: Path, lock_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny.write_gguf(tmp_path / "m.gguf", tiny.metadata())
    for name in ("gguf", "numpy", "roundhouse", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    run_converter("gguf", source, tmp_path / "out", lock_fd=lock_fd, report=lambda event: None)
    assert not (tmp_path / "marker").exists()


def test_an_interrupted_wait_ends_the_converter(tmp_path: Path, lock_fd: int) -> None:
    source = tiny.write_gguf(tmp_path / "m.gguf", tiny.metadata())

    def interrupt(event: ProgressEvent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_converter("gguf", source, tmp_path, lock_fd=lock_fd, report=interrupt)


def test_an_end_without_last_words_is_explained() -> None:
    with tempfile.TemporaryFile() as log:
        assert _why_it_ended(-signal.SIGKILL, log) == (
            "the converter was killed, which usually means that memory ran out"
        )
        assert _why_it_ended(3, log) == "exit status 3"
        log.write(b"Traceback\n  ...\nValueError: broken \n\n")
        assert _why_it_ended(1, log) == "ValueError: broken"
