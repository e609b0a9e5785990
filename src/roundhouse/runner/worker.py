"""`Worker`: one device. Loads the model, says what KV blocks cost, gets its blocks, warms up, and runs steps."""

from __future__ import annotations

import logging

import torch

from roundhouse.grammar.compiler import GrammarCompiler
from roundhouse.grammar.vocabulary import build_vocabulary
from roundhouse.model_store.tokenizer import load_tokenizer
from roundhouse.models.causal_lm import CausalLM
from roundhouse.models.determinism import deterministic_threads, refuse_not_deterministic
from roundhouse.models.dtype import choose_dtype, cpu_has_bfloat16
from roundhouse.models.loader import OnProgress, load_causal_lm, read_config
from roundhouse.models.tiled_lm import TiledCausalLM
from roundhouse.protocol.errors import ConfigError, ModelError
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.runner.attention import AttentionBackend
from roundhouse.runner.attention_flash import FlashBackend, why_not_flash
from roundhouse.runner.attention_sdpa import SdpaBackend
from roundhouse.runner.attention_tiled import TiledBackend
from roundhouse.runner.config import RunnerConfig
from roundhouse.runner.kv_store import KVFacts, KVStore, kv_facts
from roundhouse.runner.model_runner import Model, ModelRunner
from roundhouse.runner.threads import read_cpu_limit
from roundhouse.runner.tile_probe import choose_shapes
from roundhouse.scheduler.step import ModelRunnerOutput, NewRequest, SchedulerOutput

logger = logging.getLogger(__name__)

WARM_UP_PROMPT_TOKENS = 32
DIGEST_LENGTH = 16
"""Hex digits of the trial's digest: enough that two CPUs that compute differently are told apart."""

_WARM_UP_ID = "warm-up"


class Worker:
    """Call in this order: `load_model`, `initialize_kv`, `warm_up`, then `execute_model` for every step."""

    def __init__(self, config: RunnerConfig) -> None:
        self._config = config
        self.device = choose_device(config.device)
        self._model: CausalLM | None = None
        self._runner: ModelRunner | None = None
        self._kernel_path: str | None = None

    def load_model(self, on_progress: OnProgress | None = None) -> None:
        """Raises `ModelError` for a model that cannot be read or served, `ConfigError` for a setting it cannot take."""
        config = self._config
        num_threads = config.num_threads or read_cpu_limit()
        torch.set_num_threads(num_threads)
        model_config = read_config(config.model_path)
        dtype = choose_dtype(
            config.dtype,
            stored=model_config.get_text_config(decoder=True).dtype or torch.float32,
            device=self.device.type,
            cpu_has_bfloat16=cpu_has_bfloat16(),
        )
        self._model = load_causal_lm(
            config.model_path,
            model_config,
            dtype=dtype,
            device=self.device,
            max_model_len=config.max_model_len,
            on_progress=on_progress,
        )
        if config.deterministic:
            refuse_not_deterministic(self._model)
            torch.set_num_threads(deterministic_threads(self._model, num_threads))

    @property
    def model(self) -> CausalLM:
        assert self._model is not None, "load_model comes first"
        return self._model

    @property
    def max_model_len(self) -> int:
        return self.model.max_model_len

    @property
    def vocab_size(self) -> int:
        """Token ids below this can be sampled."""
        return min(self.model.vocab_size, self._config.vocab_size or self.model.vocab_size)

    @property
    def kv_facts(self) -> KVFacts:
        return kv_facts(self.model.layers, self.model.dtype, self._config.block_size)

    @property
    def dtype_name(self) -> str:
        """As in `RunnerConfig.dtype`, 'auto' decided."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def kernel_path(self) -> str:
        """What the bits of a result depend on beside weights and dtype, as far as it is known."""
        assert self._kernel_path is not None, "initialize_kv comes first"
        return self._kernel_path

    def initialize_kv(self, num_blocks: int) -> None:
        """Allocates the KV cache; block ids are below `num_blocks`.

        Raises `ConfigError` when execution should be deterministic and this machine's kernels are not.
        """
        model, block_size = self.model, self._config.block_size
        store = KVStore(
            model.layers, num_blocks=num_blocks, block_size=block_size, dtype=model.dtype, device=self.device
        )
        if self._config.deterministic:
            shapes, digest = choose_shapes(model, store)
            logger.info("deterministic: tiles of %s rows, %d threads", shapes.heights, torch.get_num_threads())
            backend, runs = TiledBackend(store, shapes=shapes), TiledCausalLM(model, heights=shapes.heights)
            self._kernel_path = f"{backend.name}-{digest[:DIGEST_LENGTH]}"
        else:
            backend, runs = self._choose_backend(store), model
            self._kernel_path = backend.name
        self._runner = self._make_runner(runs, backend, store)

    def warm_up(self) -> None:
        """A prompt and one more token, all in block 0: the first request then finds every kernel made and chosen."""
        num_tokens = max(1, min(WARM_UP_PROMPT_TOKENS, self.max_model_len - 1))
        request = NewRequest(
            request_id=_WARM_UP_ID,
            token_ids=[0] * num_tokens,
            num_prompt_tokens=num_tokens,
            sampling_params=SamplingParams(),
            seed=0,
            child_index=0,
            stop_token_ids=frozenset(),
            block_ids=[0] * (num_tokens // self._config.block_size + 1),
            num_computed_tokens=0,
        )
        first = self.execute_model(SchedulerOutput([request], {_WARM_UP_ID: num_tokens}))
        if first.failed:
            raise ModelError("the model's logits are not finite: its weights are damaged, or overflow in this dtype")
        if num_tokens < self.max_model_len:
            self.execute_model(SchedulerOutput([], {_WARM_UP_ID: 1}))
        self.execute_model(SchedulerOutput([], {}, finished=[_WARM_UP_ID]))

    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        assert self._runner is not None, "initialize_kv comes first"
        return self._runner.execute_model(plan)

    def _make_runner(self, model: Model, backend: AttentionBackend, store: KVStore) -> ModelRunner:
        compiler = GrammarCompiler(lambda: build_vocabulary(load_tokenizer(self._config.model_path), self.vocab_size))
        return ModelRunner(model, backend, store, self._config, max_model_len=self.max_model_len, compiler=compiler)

    def _choose_backend(self, store: KVStore) -> AttentionBackend:
        model = self.model
        reason = why_not_flash(model.layers, device=self.device, dtype=model.dtype, block_size=self._config.block_size)
        if reason is None:
            return FlashBackend(store, device=self.device)
        logger.info("attention by sdpa: %s", reason)
        return SdpaBackend(store, dtype=model.dtype, device=self.device)


def choose_device(name: str) -> torch.device:
    """Raises `ConfigError` when CUDA is asked for and not there."""
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise ConfigError("device cuda was asked for, but torch finds no CUDA device")
    return torch.device("cuda" if has_cuda and name != "cpu" else "cpu")
