"""The default model's real conversion, real converter processes that fail or are killed, and a hub on the loopback."""

import hashlib
import http.server
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from roundhouse.model_store import (
    ModelFolder,
    ProgressEvent,
    fingerprint,
    hub,
    load_chat_template,
    load_tokenizer,
    resolve_model,
)
from roundhouse.model_store.errors import (
    CacheUnusable,
    ConversionFailed,
    HubUnreachable,
    ModelError,
    ModelFolderInvalid,
    ModelUnavailable,
)
from roundhouse.model_store.folder import check_folder
from tests.unit.model_store import tiny

TEXTS = [
    "Hello world! 123",
    "  12345 hello  world\n\n\tdef f(x):",
    "Café déjà vu.",
    "你好 🎉 ١٢٣ ½ \u0000",
    "<|im_start|>user\nhi<|im_end|>\nx<repo_name>y",
    "",
]
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}],
    [
        {"role": "user", "content": "<b>& 'x'</b>", "name": None},
        {"role": "assistant", "content": "  two \n"},
        {"role": "user", "content": "é🎉"},
    ],
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<é>", "parameters": {"type": "object"}}}]
TOOL_TEMPLATE = (
    "{{- bos_token }}\n{%- set ns = namespace(n=0) %}\n{%- for m in messages %}\n    {%- if m.role == 'tool' %}"
    "{% continue %}{% endif %}\n    {% set ns.n = ns.n + 1 %}\n{{ ns.n }}. {{ m['content'] | trim }}\n"
    "  {% generation %}{{ m.reasoning_content }}{% endgeneration %}\n{%- endfor %}\n"
    "{% if tools %}{{ tools | tojson(indent=2) }}{{ tools[0] | tojson }}{% endif %}\n"
    "{{ style if style is defined else 'plain' }}{% if add_generation_prompt %}>{% endif %}{{ strftime_now('%Y') }}"
)


def resolve(model: str | Path, cache: Path, *, weights: bool = True) -> ModelFolder:
    return resolve_model(str(model), cache_dir=cache, weights=weights, on_progress=lambda event: None)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Converted here and not taken from the user's cache: the conversion is what is tested."""
    return resolve("smollm2", tmp_path_factory.mktemp("cache")).path


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Any:
    """Transformers' own tokenizer, from the same folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(smollm2), trust_remote_code=False)


def test_the_default_model_has_every_part(smollm2: Path) -> None:
    assert sorted(path.name for path in smollm2.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    loaded = load_tokenizer(smollm2)
    assert (loaded.vocab_size, loaded.model_vocab_size, loaded.max_model_len) == (49152, 49152, 8192)
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (1, 2, 2)
    assert loaded.stop_token_ids == {2}
    assert loaded.special_token_ids == set(range(17))
    assert loaded.special_tokens["unk_token"] == "<|endoftext|>"


def test_the_default_model_answers_as_it_should(smollm2: Path) -> None:
    """Rows of heads in the wrong order, or a template or tokenizer that is off, would end in babble."""
    import torch
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        str(smollm2), dtype=torch.float32, trust_remote_code=False, output_loading_info=True
    )
    assert [kind for kind, names in info.items() if names] == []
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    loaded = load_tokenizer(smollm2)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = loaded.encode(load_chat_template(smollm2).render(chat, add_generation_prompt=True), False)
    output = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0].tolist()[len(prompt) :]
    assert loaded.decode(output, skip_special_tokens=False) == "The capital of France is Paris.<|im_end|>"


def test_the_default_tokenizer_is_the_models_own(smollm2: Path, reference: Any) -> None:
    loaded = load_tokenizer(smollm2)
    # The ids of the model's published tokenizer.json, for the cases that other readers of the GGUF file get wrong.
    assert loaded.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert loaded.encode("  12345") == [256, 33, 34, 35, 36, 37]
    for text in TEXTS:
        ids = loaded.encode(text)
        assert ids == reference.encode(text)
        assert loaded.decode(ids, skip_special_tokens=False) == text
        assert loaded.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert loaded.special_tokens == reference.special_tokens_map


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("own_template", [True, False])
def test_templates_render_as_in_transformers(
    smollm2: Path, reference: Any, chat: list[dict[str, Any]], own_template: bool, tmp_path: Path
) -> None:
    source = None if own_template else TOOL_TEMPLATE
    if source is not None:
        (tmp_path / "chat_template.jinja").write_text(source)
        (tmp_path / "tokenizer_config.json").write_bytes((smollm2 / "tokenizer_config.json").read_bytes())
    template = load_chat_template(smollm2 if source is None else tmp_path)
    expected = partial(reference.apply_chat_template, chat, chat_template=source, tokenize=False)
    assert template.render(chat) == expected()
    assert template.render(chat, add_generation_prompt=True) == expected(add_generation_prompt=True)
    assert template.render(chat, tools=TOOLS, template_kwargs={"style": "<b>"}) == expected(tools=TOOLS, style="<b>")
    assert template.render(chat, continue_final_message=True) == expected(continue_final_message=True)


def test_a_frontend_prepares_the_default_model_without_torch_and_without_a_process(tmp_path: Path) -> None:
    program = (
        "import pathlib, subprocess, sys\n"
        "subprocess.Popen = None\n"
        "from roundhouse.model_store import load_chat_template, load_tokenizer, resolve_model\n"
        "folder = resolve_model('smollm2', cache_dir=pathlib.Path(sys.argv[1]), weights=False).path\n"
        "load_chat_template(folder).render([{'role': 'user', 'content': 'hi'}])\n"
        "load_tokenizer(folder)\n"
        "print(sorted({'torch', 'transformers', 'gguf', 'numpy', 'huggingface_hub'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=python_env())
    assert (done.stdout, done.stderr) == ("[]\n", "")


def python_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def start_resolving(model: str | Path, cache: Path) -> subprocess.Popen[str]:
    """A process that resolves and prints each stage as it begins, then the folder."""
    program = (
        "import pathlib, sys\n"
        "from roundhouse.model_store import resolve_model\n"
        "def show(event):\n"
        "    if event.done == 0: print(event.stage, flush=True)\n"
        "print(resolve_model(sys.argv[1], cache_dir=pathlib.Path(sys.argv[2]), on_progress=show).path, flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(model), str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=python_env())


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir() if path.is_dir())


def test_processes_that_start_together_convert_once(tmp_path: Path, smollm2: Path) -> None:
    processes = [start_resolving("smollm2", tmp_path) for _ in range(4)]
    stories = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert {story[-1] for story in stories} == {str(tmp_path / "models" / smollm2.name)}
    stages = [stage for story in stories for stage in story]
    assert stages.count("converting the weights to safetensors") == 1
    assert stages.count(f"waiting for another process to prepare {smollm2.name}") >= 1
    assert entries(tmp_path) == [smollm2.name]
    assert fingerprint(tmp_path / "models" / smollm2.name) == fingerprint(smollm2)


def test_what_a_killed_process_left_is_not_used_and_goes_away(tmp_path: Path, smollm2: Path) -> None:
    process = start_resolving("smollm2", tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "preparing smollm2 for its first use\n"
    assert process.stdout.readline() == "converting the weights to safetensors\n"
    converters = psutil.Process(process.pid).children()
    process.kill()
    process.communicate(timeout=10)
    assert entries(tmp_path) == [f"{smollm2.name}.partial-{process.pid}"]
    # The orphan notices at its next line, and the lock is its own until then.
    assert resolve("smollm2", tmp_path).path.name == smollm2.name
    psutil.wait_procs(converters, timeout=10)
    assert entries(tmp_path) == [smollm2.name]


def test_a_killed_converter_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    def kill(event: ProgressEvent) -> None:
        if event.total:
            for child in psutil.Process().children():
                child.send_signal(signal.SIGKILL)

    with pytest.raises(ConversionFailed, match="the converter was killed, which usually means that memory ran out"):
        resolve_model("smollm2", cache_dir=tmp_path, on_progress=kill)
    assert entries(tmp_path) == []


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """The file size limit stands for the disk: the same call fails in the same place."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50 * 2**20, hard))
    try:
        with pytest.raises(CacheUnusable) as caught:
            resolve("smollm2", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.message == (
        "the model cache cannot be written: File too large; set ROUNDHOUSE_CACHE to a folder with more room"
    )
    assert entries(tmp_path) == []


@pytest.fixture(scope="module")
def sentencepiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer is older than tokenizer.json, and whose Python files write a marker when they run."""
    import sentencepiece

    folder = tiny.write_folder(tmp_path_factory.mktemp("model"))
    (folder / "tokenizer.json").unlink()
    corpus = folder.parent / f"{folder.name}.txt"
    corpus.write_text("\n".join(["hello world", "a tiny corpus of a few words", "1 2 3"] * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "tokenizer"), vocab_size=320, model_type="bpe", byte_fallback=True
    )
    (folder / "tokenizer.vocab").unlink()
    auto_map = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.Tok", None]}
    tiny.write_json(folder / "config.json", {"model_type": "llama", "vocab_size": 320, "auto_map": auto_map})
    tiny.write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "auto_map": auto_map},
    )
    trap = f"open({str(folder.parent / 'marker')!r}, 'w').close()\n"
    for name in ("evil.py", "torch.py", "tokenizers.py", "sentencepiece.py"):
        (folder / name).write_text(trap)
    return folder


def test_an_older_tokenizer_is_converted_once_and_no_code_of_the_folder_runs(
    sentencepiece_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sentencepiece_folder)
    before = sorted(path.name for path in sentencepiece_folder.iterdir())
    found = resolve(".", tmp_path)
    assert found.name == "."
    assert resolve(sentencepiece_folder, tmp_path).path == found.path
    check_folder(found.path)
    loaded = load_tokenizer(found.path)
    assert loaded.decode(loaded.encode("hello world", False)) == "hello world"
    assert [loaded.token_bytes(index) for index in loaded.encode("é", False)[-2:]] == [b"\xc3", b"\xa9"]
    assert (loaded.special_tokens["bos_token"], loaded.special_tokens["eos_token"]) == ("<s>", "</s>")
    assert (found.path / "model.safetensors").resolve() == (sentencepiece_folder / "model.safetensors").resolve()
    assert not (sentencepiece_folder.parent / "marker").exists()
    assert sorted(path.name for path in sentencepiece_folder.iterdir()) == before


def test_an_architecture_beyond_our_own_table_goes_to_transformers(tmp_path: Path) -> None:
    """Which insists on accelerate; without it the user reads that in one line."""
    keys = tiny.metadata(general__architecture="qwen2", tokenizer__ggml__pre="qwen2")
    keys = {key.replace("llama.", "qwen2."): value for key, value in keys.items()}
    source = tiny.write_gguf(tmp_path / "tiny.gguf", keys)
    from importlib.util import find_spec

    if find_spec("accelerate") is None:
        with pytest.raises(ConversionFailed, match="accelerate is required when loading a GGUF file"):
            resolve(source, tmp_path)
        return
    config = json.loads((resolve(source, tmp_path).path / "config.json").read_text())
    assert (config["model_type"], config["hidden_size"], config["dtype"]) == ("qwen2", 8, "bfloat16")


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as the client asks for: model info, the tree, and files."""

    files: dict[str, bytes]
    commit = "c" * 40
    served: list[str]

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/org/tiny/tree/"):
            entries = [{"type": "file", "path": n, "size": len(b), "oid": _oid(b)} for n, b in self.files.items()]
            self._send(json.dumps(entries).encode(), {"Content-Type": "application/json"}, with_body)
        elif path.startswith("/api/models/org/tiny"):
            siblings = [{"rfilename": name, "size": len(body)} for name, body in self.files.items()]
            info = {"id": "org/tiny", "sha": self.commit, "siblings": siblings, "private": False, "tags": []}
            self._send(json.dumps(info).encode(), {"Content-Type": "application/json"}, with_body)
        elif path.startswith(f"/org/tiny/resolve/{self.commit}/"):
            name = path.rpartition("/")[2]
            if with_body:
                self.served.append(name)
            self._send(self.files[name], {"ETag": _oid(self.files[name]), "X-Repo-Commit": self.commit}, with_body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return None


def _oid(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@pytest.fixture
def hub_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[Hub], str]]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder = tiny.write_folder(tmp_path / "tiny")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"pytorch_model.bin": b"pickle", "evil.py": b"import os", "README.md": b"#"}
    handler = type("TinyHub", (Hub,), {"files": files, "served": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(endpoint: str, cache: Path, *, weights: bool = True, repo: str = "org/tiny", report: Any = None) -> Path:
    report = report or (lambda event: None)
    return hub.fetch(repo, revision=None, weights=weights, report=report, endpoint=endpoint, hub_cache=cache)


def test_a_repository_is_downloaded_in_parts_and_found_again_without_the_hub(
    hub_server: tuple[type[Hub], str], tmp_path: Path
) -> None:
    handler, endpoint = hub_server
    small = fetch(endpoint, tmp_path / "hub", weights=False)
    assert sorted(handler.served) == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    events: list[ProgressEvent] = []
    whole = fetch(endpoint, tmp_path / "hub", report=events.append)
    assert whole == small
    assert handler.served[3:] == ["model.safetensors"]
    check_folder(whole)
    assert sorted(path.name for path in whole.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert {event.stage for event in events} <= {"downloading org/tiny"}
    assert fetch("http://127.0.0.1:9", tmp_path / "hub") == whole


def test_an_unusable_repository_costs_no_download(hub_server: tuple[type[Hub], str], tmp_path: Path) -> None:
    handler, endpoint = hub_server
    del handler.files["model.safetensors"]
    with pytest.raises(ModelFolderInvalid) as caught:
        fetch(endpoint, tmp_path / "hub")
    assert caught.value.message == (
        "org/tiny on the hub has no *.safetensors; only safetensors are read, "
        "never pickles such as pytorch_model.bin, because unpickling runs code"
    )
    assert handler.served == []


def test_a_repository_that_does_not_exist(hub_server: tuple[type[Hub], str], tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        fetch(hub_server[1], tmp_path / "hub", repo="org/none")
    assert caught.value.message == (
        "there is no folder org/none here, and on the hub no such model or one that HF_TOKEN does not open"
    )


def test_a_hub_that_never_answers_is_one_line_within_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        with pytest.raises(HubUnreachable) as caught:
            fetch(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path / "hub")
        assert time.monotonic() - started < 5.0
    assert "\n" not in caught.value.message


def test_offline_is_one_line_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError) as caught:
        resolve("org/none", tmp_path)
    assert caught.value.message == "org/none is not on this machine and HF_HUB_OFFLINE forbids to ask the hub for it"
