from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from roundhouse.cli import options
from roundhouse.cli.main import cli
from roundhouse.protocol.errors import ConfigError
from roundhouse.server.api_keys import ApiKey


def parsed(*stack: Any, args: list[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    """The flags that a command with the option stacks `stack` gets for `args`."""
    seen: dict[str, Any] = {}

    def command(**flags: Any) -> None:
        seen.update(flags)

    for decorator in reversed(stack):
        command = decorator(command)
    result = CliRunner().invoke(click.command()(command), args, env=env or {}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen


ENGINE = (options.model, options.mesh_connect, options.engine_tuning, options.log_level)
SERVE = (
    options.model,
    options.http,
    options.waits,
    options.admin,
    options.engines,
    options.engine_tuning,
    options.log_level,
)


def test_serve_defaults() -> None:
    settings = options.serve_settings(parsed(*SERVE, args=[]))
    assert settings == options.ServeSettings(
        model="smollm2",
        http=options.HttpSettings("127.0.0.1", 8000, ("smollm2",), 30.0),
        waits=options.WaitSettings(30.0, 120.0),
        admin=None,
        engines=1,
        tuning=options.EngineTuning(
            dtype="auto",
            device="auto",
            max_model_len=None,
            max_num_seqs=128,
            max_num_batched_tokens=None,
            block_size=16,
            num_kv_blocks=None,
            kv_cache_bytes=None,
            prefix_caching=True,
            policy="fcfs",
            num_threads=None,
            deterministic=False,
        ),
        log_level="info",
    )


def test_an_ipv6_host_loses_its_brackets() -> None:
    assert options.serve_settings(parsed(*SERVE, args=["--host", "[::1]"])).http.host == "::1"


def test_a_flag_can_come_from_the_environment() -> None:
    settings = options.serve_settings(parsed(*SERVE, args=[], env={"ROUNDHOUSE_PORT": "81", "ROUNDHOUSE_MODEL": "m"}))
    assert (settings.http.port, settings.model, settings.http.served_names) == (81, "m", ("m",))


def test_the_admin_port_has_its_own_address_and_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    args = ["--admin-port", "8001", "--admin-host", "[::1]", "--admin-token-file", str(token)]
    settings = options.serve_settings(parsed(*SERVE, args=args))
    assert settings.admin == options.AdminSettings("::1", 8001, token)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--dtype", "float32", "--max-model-len", "512", "--num-kv-blocks", "64", "--threads", "1"],
        ["--deterministic", "--dtype", "bfloat16"],
        ["--no-prefix-caching", "--policy", "priority", "--kv-cache-memory", "1.5GiB", "--max-num-seqs", "3"],
    ],
)
def test_tuning_flags_are_the_inverse_of_reading_them(args: list[str]) -> None:
    tuning = options.engine_settings(parsed(*ENGINE, args=args)).tuning
    assert options.engine_settings(parsed(*ENGINE, args=options.tuning_flags(tuning))).tuning == tuning


@pytest.mark.parametrize(
    ("text", "value"), [("512MiB", 2**29), ("2GB", 2 * 10**9), ("4096", 4096), ("1.5 gi", 1610612736)]
)
def test_sizes(text: str, value: int) -> None:
    assert options.Bytes().convert(text, None, None) == value


def test_a_bad_size_says_what_a_size_is() -> None:
    with pytest.raises(click.BadParameter, match="'lots' is not a size"):
        options.Bytes().convert("lots", None, None)


def test_frontends_are_a_list() -> None:
    settings = options.engine_settings(parsed(*ENGINE, args=["--frontends", "tcp://127.0.0.1:1, tcp://[::1]:2,"]))
    assert settings.frontends == ("tcp://127.0.0.1:1", "tcp://[::1]:2")
    with pytest.raises(ConfigError, match="names no frontend"):
        options.engine_settings(parsed(*ENGINE, args=["--frontends", " , "]))


def test_frontends_elsewhere_need_keys_or_a_word(tmp_path: Path) -> None:
    elsewhere = ["--frontends", "tcp://127.0.0.1:1,tcp://frontends:5570"]
    with pytest.raises(ConfigError, match="cannot connect to tcp://frontends:5570"):
        options.engine_settings(parsed(*ENGINE, args=elsewhere))
    insecure = options.engine_settings(parsed(*ENGINE, args=[*elsewhere, "--insecure-mesh"]))
    closed = options.engine_settings(parsed(*ENGINE, args=[*elsewhere, "--mesh-keys", str(tmp_path)]))
    assert (insecure.mesh_keys, insecure.insecure_mesh) == (None, True)
    assert (closed.mesh_keys, closed.insecure_mesh) == (tmp_path, False)


@pytest.mark.parametrize("bad", ["", "   "])
def test_a_served_name_may_not_be_empty(bad: str) -> None:
    with pytest.raises(ConfigError, match="--served-model-name may not be empty"):
        options.serve_settings(parsed(*SERVE, args=["--served-model-name", bad]))
    with pytest.raises(ConfigError, match="--served-model-name may not be empty"):
        options.engine_settings(parsed(*ENGINE, args=["--served-model-name", bad]))


@pytest.mark.parametrize("identity", ["", "x" * 129])
def test_an_identity_that_cannot_be_is_refused_before_anything_is_loaded(identity: str) -> None:
    with pytest.raises(ConfigError, match="an engine identity has 1 to 128 bytes"):
        options.engine_settings(parsed(*ENGINE, args=["--identity", identity]))


def test_a_frontend_address_that_cannot_be_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="expected tcp://HOST:PORT or ipc:///FOLDER"):
        options.engine_settings(parsed(*ENGINE, args=["--frontends", "bogus"]))


def test_a_folder_and_a_file_are_served_under_their_own_name(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "small.Q4.gguf").touch()
    assert options.default_served_name(f"{tmp_path}/tiny/") == "tiny"
    assert options.default_served_name(f"{tmp_path}/small.Q4.gguf") == "small.Q4"
    assert options.default_served_name("owner/model") == "owner/model"


def test_api_keys_come_from_files_and_the_environment_which_forgets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_API_KEY", "a-key")
    files = [tmp_path / "one", tmp_path / "two"]
    for file in files:
        file.write_text("k")
    args = [part for file in files for part in ("--api-key-file", str(file))]
    http = options.serve_settings(parsed(*SERVE, args=[*args, "--cache-salt-per-key"])).http
    assert (http.api_key_files, http.cache_salt_per_key) == (tuple(files), True)
    assert http.api_keys == (ApiKey(sha256(b"a-key").digest(), "ROUNDHOUSE_API_KEY", is_short=True),)
    assert "ROUNDHOUSE_API_KEY" not in os.environ


def test_an_api_key_that_is_set_to_nothing_opens_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_API_KEY", "")
    with pytest.raises(ConfigError, match=r"an API key has .*\(ROUNDHOUSE_API_KEY\)"):
        options.serve_settings(parsed(*SERVE, args=[]))


def test_a_salt_for_each_key_needs_keys() -> None:
    with pytest.raises(ConfigError, match="--cache-salt-per-key needs API keys"):
        options.serve_settings(parsed(*SERVE, args=["--cache-salt-per-key"]))


def test_no_flag_takes_a_key() -> None:
    names = {name for command in cli.commands.values() for option in command.params for name in option.opts}
    assert {name for name in names if "api-key" in name} == {"--api-key-file"}
