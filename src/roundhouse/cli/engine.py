"""`roundhouse engine`: load the model, connect to the frontends, run the busy loop, leave in order."""

from __future__ import annotations

import gc
import logging
import signal
import time
from pathlib import Path
from queue import SimpleQueue

from roundhouse.cli.options import EngineSettings
from roundhouse.engine.build import BuiltEngine, build_engine
from roundhouse.engine.config import EngineConfig, default_batched_tokens
from roundhouse.engine.inbox import Inbox, ShutdownAsked
from roundhouse.engine.proc import EngineProc
from roundhouse.lifeline import end_with_parent
from roundhouse.model_store import ProgressEvent, fingerprint, load_tokenizer, resolve_model
from roundhouse.model_store.progress import console_display
from roundhouse.protocol.limits import MAX_MESSAGE_BYTES
from roundhouse.protocol.messages import PROTOCOL_VERSIONS, Hello
from roundhouse.runner.config import RunnerConfig
from roundhouse.runner.worker import choose_device
from roundhouse.transport.engine_link import EngineLink
from roundhouse.transport.items import Backlog, BusyLoopStatus, OutputItem
from roundhouse.transport.key_folder import KeyFolder
from roundhouse.transport.keys import EngineKeys, parse_engine_keys

logger = logging.getLogger(__name__)

FATAL_EXIT_CODE = 1


def run_engine(settings: EngineSettings) -> int:
    """The exit code: 0 after an orderly end, `FATAL_EXIT_CODE` after an error of the engine's own.

    Raises a `RoundhouseError` when the model or a setting is wrong.
    """
    started_unix_ms = time.time_ns() // 1_000_000
    if settings.parent_pid is not None:
        end_with_parent(settings.parent_pid)
    # Before the model: a wrong folder is said at once.
    keys = None if settings.mesh_keys is None else KeyFolder(settings.mesh_keys, parse_engine_keys)
    folder = resolve_model(settings.model)
    tokenizer = load_tokenizer(folder.path)
    config = _engine_config(settings, folder.path, tokenizer.vocab_size)
    with console_display() as display:
        built = build_engine(
            config, on_progress=lambda done, total: display(ProgressEvent("loading weights", done, total))
        )
    hello = _hello(settings, built, fingerprint(folder.path), started_unix_ms)
    return _serve(settings, built, hello, keys)


def _serve(settings: EngineSettings, built: BuiltEngine, hello: Hello, keys: KeyFolder[EngineKeys] | None) -> int:
    backlog, status = Backlog(), BusyLoopStatus()
    inbox = Inbox(backlog)
    output_queue: SimpleQueue[OutputItem] = SimpleQueue()
    proc = EngineProc(built.core, inbox, output_queue, status, drain_grace_s=settings.grace_s)
    link = EngineLink(
        hello,
        settings.frontends,
        inbox,
        output_queue,
        status,
        keys=keys,
        insecure_mesh=settings.insecure_mesh,
        backlog=backlog,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: inbox.put(ShutdownAsked()))
    # What is alive now stays alive: a collection need not look at it again.
    gc.collect()
    gc.freeze()
    link.start()
    logger.info("engine %s is ready for %s", settings.identity, ", ".join(settings.frontends))
    try:
        proc.run_busy_loop()
    except Exception as error:
        logger.exception("the engine failed")
        link.close(last_words=f"{type(error).__name__}: {error}")
        return FATAL_EXIT_CODE
    link.close()
    return 0


def _engine_config(settings: EngineSettings, model_path: Path, vocab_size: int) -> EngineConfig:
    tuning = settings.tuning
    return EngineConfig(
        runner=RunnerConfig(
            model_path=model_path,
            dtype=tuning.dtype,
            device=tuning.device,
            block_size=tuning.block_size,
            max_num_seqs=tuning.max_num_seqs,
            max_num_batched_tokens=tuning.max_num_batched_tokens
            or default_batched_tokens(choose_device(tuning.device).type),
            max_model_len=tuning.max_model_len,
            vocab_size=vocab_size,
            num_threads=tuning.num_threads,
            deterministic=tuning.deterministic,
        ),
        num_blocks=tuning.num_kv_blocks,
        kv_cache_bytes=tuning.kv_cache_bytes,
        engines_on_machine=settings.engines_on_machine,
        enable_prefix_caching=tuning.prefix_caching,
        policy=tuning.policy,
    )


def _hello(settings: EngineSettings, built: BuiltEngine, weights: str, started_unix_ms: int) -> Hello:
    core = built.core
    return Hello(
        identity=settings.identity,
        epoch=(settings.granted_epoch, started_unix_ms),
        nonce=b"",
        protocol_versions=PROTOCOL_VERSIONS,
        model=settings.served_name,
        resume_key=f"{weights}/{built.dtype}/{built.kernel_path}",
        block_size=core.scheduler.kv_cache.block_size,
        num_blocks=built.num_blocks,
        max_model_len=built.max_model_len,
        max_num_seqs=core.scheduler.config.max_num_seqs,
        max_message_bytes=MAX_MESSAGE_BYTES,
        vocab_size=core.vocab_size,
    )
