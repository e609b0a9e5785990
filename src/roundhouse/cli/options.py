"""The only reader of flags and environment: click options, and the settings they become.

Every flag can be given as ROUNDHOUSE_<FLAG> too.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

from roundhouse.protocol.errors import ConfigError
from roundhouse.protocol.identity import check_identity
from roundhouse.scheduler.config import Policy
from roundhouse.server.api_keys import ApiKey, key_of
from roundhouse.transport.address import parse_address
from roundhouse.transport.reach import check_connect

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MODEL = "smollm2"
API_KEY_VARIABLE = "ROUNDHOUSE_API_KEY"
LOG_LEVELS = ["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """served_names: what clients may call the model; the first is the one that answers carry.

    api_key_files: files and folders of keys. api_keys: those that are in none. Without either everybody is served.
    """

    host: str
    port: int
    served_names: tuple[str, ...]
    grace_s: float
    api_key_files: tuple[Path, ...] = ()
    api_keys: tuple[ApiKey, ...] = ()
    cache_salt_per_key: bool = False

    @property
    def has_keys(self) -> bool:
        return bool(self.api_key_files or self.api_keys)


@dataclass(frozen=True, slots=True)
class WaitSettings:
    """Seconds that requests wait while no engine can take them: one that none has begun, and one that was begun."""

    wait_timeout_s: float
    resume_timeout_s: float


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """token_file: holds the bearer token of what changes something."""

    host: str
    port: int
    token_file: Path | None


@dataclass(frozen=True, slots=True)
class EngineTuning:
    """None: the engine decides by the model and the machine."""

    dtype: str
    device: str
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int | None
    block_size: int
    num_kv_blocks: int | None
    kv_cache_bytes: int | None
    prefix_caching: bool
    policy: Policy
    num_threads: int | None
    deterministic: bool


@dataclass(frozen=True, slots=True)
class ServeSettings:
    model: str
    http: HttpSettings
    waits: WaitSettings
    admin: AdminSettings | None
    engines: int
    tuning: EngineTuning
    log_level: str


@dataclass(frozen=True, slots=True)
class FrontendSettings:
    model: str
    http: HttpSettings
    waits: WaitSettings
    admin: AdminSettings | None
    mesh_bind: str
    mesh_keys: Path | None
    insecure_mesh: bool
    log_level: str


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """parent_pid: die with this process; None to live on alone."""

    model: str
    served_name: str
    frontends: tuple[str, ...]
    mesh_keys: Path | None
    insecure_mesh: bool
    identity: str
    granted_epoch: int
    grace_s: float
    parent_pid: int | None
    engines_on_machine: int
    tuning: EngineTuning
    log_level: str


class Bytes(click.ParamType):
    """A size such as 512MiB, 2GiB or a plain number of bytes."""

    name = "size"
    _UNITS: ClassVar = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(|[kmg]i?)b?", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is not a size; give one such as 2GiB", param, ctx)
        return int(float(match[1]) * self._UNITS[match[2]])


def _option(*names: str, **settings: Any) -> Callable[[F], F]:
    longest = max(names, key=len).split("/")[0]
    return click.option(*names, envvar="ROUNDHOUSE_" + longest.lstrip("-").replace("-", "_").upper(), **settings)


def _stack(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


model = click.argument("model", default=DEFAULT_MODEL, envvar="ROUNDHOUSE_MODEL")

log_level = _option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="Log level.")

http = _stack(
    _option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; :: or 0.0.0.0 for all."),
    _option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 picks a free one."),
    _option("--served-model-name", multiple=True, help="Name for the model in the API; may be given several times."),
    _option(
        "--grace",
        type=click.FloatRange(0),
        default=30.0,
        show_default=True,
        help="Seconds that running requests get to end after SIGTERM.",
    ),
    _option(
        "--api-key-file",
        type=click.Path(exists=True, path_type=Path),
        multiple=True,
        help="File of API keys or of their hashes, or a folder of such files; may be given several times, and is "
        "re-read. One key may be in ROUNDHOUSE_API_KEY instead.  [default: no key is needed]",
    ),
    _option(
        "--cache-salt-per-key/--no-cache-salt-per-key",
        default=False,
        show_default=True,
        help="Clients with different API keys share no cached prefix.",
    ),
)

waits = _stack(
    _option(
        "--wait-timeout",
        type=click.FloatRange(0),
        default=30.0,
        show_default=True,
        help="Seconds that a new request waits for an engine; 0 refuses it at once.",
    ),
    _option(
        "--resume-timeout",
        type=click.FloatRange(0),
        default=120.0,
        show_default=True,
        help="Seconds that a request whose engine is lost waits for another one.",
    ),
)

admin = _stack(
    _option(
        "--admin-port",
        type=click.IntRange(0, 65535),
        default=None,
        help="Port for probes, metrics, load and drain, apart from the API's; 8001 is usual.  [default: none]",
    ),
    _option("--admin-host", default="127.0.0.1", show_default=True, help="Address of the admin port."),
    _option(
        "--admin-token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        help="File with the bearer token that the admin port's /drain asks for.",
    ),
)

engines = _option("--engines", type=click.IntRange(1, 64), default=1, show_default=True, help="Local engine processes.")


def _mesh_keys(part: str) -> Callable[[F], F]:
    return _option(
        "--mesh-keys",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=None,
        help=f"Folder with this process's keys, read again when it changes: {part} of what `roundhouse keys new` "
        "makes. With it tcp is encrypted and both sides prove who they are.",
    )


mesh_bind = _stack(
    _option(
        "--mesh-bind",
        default="tcp://127.0.0.1:5570",
        show_default=True,
        help="Where engines connect: tcp://HOST:PORT (requests; outputs on PORT + 1) or ipc:///FOLDER.",
    ),
    _mesh_keys("frontends/"),
    _option("--insecure-mesh", is_flag=True, help="Allow a mesh address beyond loopback without keys and encryption."),
)

mesh_connect = _stack(
    _option(
        "--frontends",
        default="tcp://127.0.0.1:5570",
        show_default=True,
        help="Mesh addresses of the frontends, separated by commas; a DNS name may stand for several.",
    ),
    _mesh_keys("engines/IDENTITY/"),
    _option("--insecure-mesh", is_flag=True, help="Connect to other machines without keys and encryption."),
    _option("--identity", default=None, help="Name of this engine, stable over restarts.  [default: the host name]"),
    _option("--granted-epoch", type=click.IntRange(0), default=0, hidden=True),
    _option("--engines-on-machine", type=click.IntRange(1), default=1, hidden=True),
    _option("--parent-pid", type=click.IntRange(1), default=None, hidden=True),
    _option(
        "--served-model-name",
        default=None,
        help="Name that the frontends serve.  [default: MODEL, of a path its last part]",
    ),
    _option("--grace", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds to drain on SIGTERM."),
)

engine_tuning = _stack(
    _option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        default="auto",
        show_default=True,
        help="Data type of weights and KV cache.",
    ),
    _option(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="Where the model runs.",
    ),
    _option("--max-model-len", type=click.IntRange(1), default=None, help="Longest context.  [default: the model's]"),
    _option(
        "--max-num-seqs", type=click.IntRange(1, 4096), default=128, show_default=True, help="Requests in one step."
    ),
    _option(
        "--max-num-batched-tokens",
        type=click.IntRange(1, 2**20),
        default=None,
        help="Tokens in one step.  [default: 512 on CPU, 8192 on CUDA]",
    ),
    _option("--block-size", type=click.IntRange(1, 256), default=16, show_default=True, help="Tokens in a KV block."),
    _option("--num-kv-blocks", type=click.IntRange(2), default=None, help="KV blocks.  [default: from memory]"),
    _option(
        "--kv-cache-memory",
        type=Bytes(),
        default=None,
        help="Memory for KV blocks, such as 2GiB.  [default: part of the free memory]",
    ),
    _option(
        "--prefix-caching/--no-prefix-caching",
        default=True,
        show_default=True,
        help="Reuse the KV blocks of equal prefixes.",
    ),
    _option(
        "--policy",
        type=click.Choice(["fcfs", "priority"]),
        default="fcfs",
        show_default=True,
        help="Order of waiting requests.",
    ),
    _option("--threads", type=click.IntRange(1), default=None, help="CPU threads.  [default: the CPU limit]"),
    _option(
        "--deterministic/--no-deterministic",
        default=False,
        show_default=True,
        help="Tokens and logprobs that are bitwise the same whatever shares the engine; slower, and on CPU only.",
    ),
)


def default_served_name(model: str) -> str:
    """What a model is called when nobody says: a folder or a file by its own name, never by its place on the server."""
    path = Path(model).expanduser()
    if path.is_file():
        return path.stem
    return path.resolve().name if path.is_dir() else model


def _named(names: Sequence[str]) -> tuple[str, ...]:
    if not all(name.strip() for name in names):
        raise ConfigError("--served-model-name may not be empty")
    return tuple(names)


def _http(flags: dict[str, Any]) -> HttpSettings:
    names = _named(flags["served_model_name"]) or (default_served_name(flags["model"]),)
    settings = HttpSettings(
        flags["host"].strip("[]"),
        flags["port"],
        names,
        flags["grace"],
        api_key_files=tuple(flags["api_key_file"]),
        api_keys=_api_keys_from_environment(),
        cache_salt_per_key=flags["cache_salt_per_key"],
    )
    if settings.cache_salt_per_key and not settings.has_keys:
        raise ConfigError("--cache-salt-per-key needs API keys: --api-key-file, or ROUNDHOUSE_API_KEY")
    return settings


def _api_keys_from_environment() -> tuple[ApiKey, ...]:
    """There is no flag for the key itself, which everybody on the machine could read in the list of processes. It is
    taken out of the environment, so that engines do not inherit it."""
    key = os.environ.pop(API_KEY_VARIABLE, None)
    return () if key is None else (key_of(key, name=API_KEY_VARIABLE),)


def _tuning(flags: dict[str, Any]) -> EngineTuning:
    return EngineTuning(
        dtype=flags["dtype"],
        device=flags["device"],
        max_model_len=flags["max_model_len"],
        max_num_seqs=flags["max_num_seqs"],
        max_num_batched_tokens=flags["max_num_batched_tokens"],
        block_size=flags["block_size"],
        num_kv_blocks=flags["num_kv_blocks"],
        kv_cache_bytes=flags["kv_cache_memory"],
        prefix_caching=flags["prefix_caching"],
        policy=flags["policy"],
        num_threads=flags["threads"],
        deterministic=flags["deterministic"],
    )


def _waits(flags: dict[str, Any]) -> WaitSettings:
    return WaitSettings(flags["wait_timeout"], flags["resume_timeout"])


def _admin(flags: dict[str, Any]) -> AdminSettings | None:
    if flags["admin_port"] is None:
        return None
    return AdminSettings(flags["admin_host"].strip("[]"), flags["admin_port"], flags["admin_token_file"])


def serve_settings(flags: dict[str, Any]) -> ServeSettings:
    return ServeSettings(
        flags["model"], _http(flags), _waits(flags), _admin(flags), flags["engines"], _tuning(flags), flags["log_level"]
    )


def frontend_settings(flags: dict[str, Any]) -> FrontendSettings:
    return FrontendSettings(
        flags["model"],
        _http(flags),
        _waits(flags),
        _admin(flags),
        flags["mesh_bind"],
        flags["mesh_keys"],
        flags["insecure_mesh"],
        flags["log_level"],
    )


def engine_settings(flags: dict[str, Any]) -> EngineSettings:
    frontends = tuple(part for part in (part.strip() for part in flags["frontends"].split(",")) if part)
    if not frontends:
        raise ConfigError("--frontends names no frontend")
    has_keys, insecure_mesh = flags["mesh_keys"] is not None, flags["insecure_mesh"]
    for address in frontends:
        check_connect(parse_address(address), has_keys=has_keys, insecure_mesh=insecure_mesh)
    identity = flags["identity"] if flags["identity"] is not None else socket.gethostname()
    check_identity(identity)
    given_name = flags["served_model_name"]
    return EngineSettings(
        model=flags["model"],
        served_name=default_served_name(flags["model"]) if given_name is None else _named([given_name])[0],
        frontends=frontends,
        mesh_keys=flags["mesh_keys"],
        insecure_mesh=insecure_mesh,
        identity=identity,
        granted_epoch=flags["granted_epoch"],
        grace_s=flags["grace"],
        parent_pid=flags["parent_pid"],
        engines_on_machine=flags["engines_on_machine"],
        tuning=_tuning(flags),
        log_level=flags["log_level"],
    )


def tuning_flags(tuning: EngineTuning) -> list[str]:
    """`tuning` as the flags of `roundhouse engine`: the inverse of how they were read."""
    pairs = {
        "--dtype": tuning.dtype,
        "--device": tuning.device,
        "--max-model-len": tuning.max_model_len,
        "--max-num-seqs": tuning.max_num_seqs,
        "--max-num-batched-tokens": tuning.max_num_batched_tokens,
        "--block-size": tuning.block_size,
        "--num-kv-blocks": tuning.num_kv_blocks,
        "--kv-cache-memory": tuning.kv_cache_bytes,
        "--policy": tuning.policy,
        "--threads": tuning.num_threads,
    }
    flags = [part for flag, value in pairs.items() if value is not None for part in (flag, str(value))]
    switches = {"prefix-caching": tuning.prefix_caching, "deterministic": tuning.deterministic}
    return [*flags, *(f"--{name}" if is_on else f"--no-{name}" for name, is_on in switches.items())]
