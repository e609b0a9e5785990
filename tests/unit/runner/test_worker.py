import re
from pathlib import Path

import pytest
import torch

from roundhouse.protocol.errors import ConfigError, ModelError
from roundhouse.runner.config import RunnerConfig
from roundhouse.runner.kv_store import KVFacts
from roundhouse.runner.worker import Worker, choose_device
from roundhouse.scheduler.step import SchedulerOutput
from tests.support.runner_driver import GREEDY, new_request
from tests.support.tiny_models import MAX_MODEL_LEN, VOCAB_SIZE, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-llama")
    tiny_model("llama", paged=False).save_pretrained(path)
    return path


def config(folder: Path, **settings: int | str | bool) -> RunnerConfig:
    return RunnerConfig(folder, **{"device": "cpu", "block_size": 4, "num_threads": 1, **settings})


def test_a_worker_from_folder_to_token(folder: Path) -> None:
    worker = Worker(config(folder, vocab_size=90))
    progress: list[tuple[int, int]] = []
    worker.load_model(lambda done, total: progress.append((done, total)))
    assert progress[-1][0] == progress[-1][1] == len(progress) > 0
    assert (worker.max_model_len, worker.vocab_size, worker.dtype_name) == (MAX_MODEL_LEN, 90, "float32")
    assert worker.kv_facts == KVFacts(
        num_layers=2, num_kv_heads=2, head_size=8, dtype_bytes=4, block_size=4, bytes_per_block=2 * 2 * 2 * 8 * 4 * 4
    )
    worker.initialize_kv(8)
    assert worker.kernel_path == "sdpa"
    worker.warm_up()
    output = worker.execute_model(SchedulerOutput([new_request([5, 6, 7], GREEDY, block_ids=[1])], {"a": 3}))
    with torch.inference_mode():
        logits = tiny_model("llama", paged=False)(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1]
    assert output.sampled_token_ids == {"a": [int(logits[:90].argmax())]}


def test_a_shorter_context_can_be_asked_for_and_a_longer_one_not(folder: Path) -> None:
    worker = Worker(config(folder, max_model_len=32))
    worker.load_model()
    assert worker.max_model_len == 32
    with pytest.raises(ModelError, match="over what the model serves: 128"):
        Worker(config(folder, max_model_len=129)).load_model()


@pytest.mark.parametrize("max_model_len", [1, 2, 5])
def test_the_shortest_contexts_warm_up_too(folder: Path, max_model_len: int) -> None:
    worker = Worker(config(folder, max_model_len=max_model_len, block_size=1))
    worker.load_model()
    worker.initialize_kv(2)
    worker.warm_up()


def test_a_dtype_can_be_asked_for(folder: Path) -> None:
    worker = Worker(config(folder, dtype="bfloat16"))
    worker.load_model()
    assert (worker.dtype_name, worker.kv_facts.dtype_bytes) == ("bfloat16", 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_that_is_not_there() -> None:
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="no CUDA device"):
        choose_device("cuda")


def test_vocab_size_is_never_more_than_the_models(folder: Path) -> None:
    worker = Worker(config(folder, vocab_size=VOCAB_SIZE + 50))
    worker.load_model()
    assert worker.vocab_size == VOCAB_SIZE


def test_a_deterministic_worker_has_the_bits_of_its_trial_in_its_kernel_path(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other-llama")
    tiny_model("llama", paged=False, seed=1).save_pretrained(other)
    paths: list[str] = []
    for place in (folder, folder, other):
        worker = Worker(config(place, deterministic=True, block_size=4 << len(paths) % 2))
        worker.load_model()
        worker.initialize_kv(16)
        worker.warm_up()
        paths.append(worker.kernel_path)
    assert paths[0] == paths[1] != paths[2]
    assert all(re.fullmatch("tiled-[0-9a-f]{16}", path) for path in paths)


def test_what_cannot_be_deterministic_is_refused_while_it_loads(tmp_path: Path) -> None:
    tiny_model("gemma2-softcap-sliding", paged=False).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="layer 0 has attention with a softcap, which has no deterministic form"):
        Worker(config(tmp_path, deterministic=True)).load_model()
