"""`ModelRunner.execute_model`: the step's plan → one forward pass over all its tokens → sampled tokens.

What one request causes ends that request: it is named in `failed`, and the others get their tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from roundhouse.grammar.compiler import GrammarCompiler
from roundhouse.models.attention import StepAttention
from roundhouse.protocol.errors import RoundhouseError
from roundhouse.protocol.messages import LogprobsLists, PromptLogprobs
from roundhouse.runner.attention import AttentionBackend
from roundhouse.runner.config import RunnerConfig
from roundhouse.runner.guided_rows import GRAMMAR_FAILED, NO_MASKS, GuidedRows
from roundhouse.runner.input_batch import InputBatch, StepInput
from roundhouse.runner.kv_store import KVStore
from roundhouse.runner.prompt_logprobs import PromptLogprobsRow
from roundhouse.runner.sampler import SamplerOutput, sample
from roundhouse.runner.sampling_rows import SamplingRows
from roundhouse.scheduler.step import ModelRunnerOutput, NewRequest, SchedulerOutput

NO_TOKEN_POSSIBLE = "no token could be chosen: the logits are not finite, or the parameters forbid every token"
SAMPLER_FAILED = "the sampler failed on this request"
PROMPT_LOGPROBS_FAILED = "the log probabilities of the prompt could not be computed"

Sample = Callable[[torch.Tensor, np.ndarray, np.ndarray, SamplingRows], SamplerOutput]
"""As `sampler.sample`."""

logger = logging.getLogger(__name__)


class Model(Protocol):
    """What the runner needs of `models.causal_lm.CausalLM`; its docstrings hold."""

    vocab_size: int
    device: torch.device

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: StepAttention, logits_indices: torch.Tensor
    ) -> torch.Tensor: ...

    def logits_of_last_forward(self, indices: torch.Tensor) -> torch.Tensor: ...

    def forget_last_forward(self) -> None: ...


class ModelRunner:
    """Owns the rows of the running requests. Not thread-safe: one thread steps."""

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        store: KVStore,
        config: RunnerConfig,
        *,
        max_model_len: int,
        compiler: GrammarCompiler | None = None,
        sample: Sample = sample,
    ) -> None:
        self._model = model
        self._backend = backend
        self._store = store
        self._device = model.device
        self._sample = sample
        self._vocab_size = min(model.vocab_size, config.vocab_size or model.vocab_size)
        self._batch = InputBatch(
            max_num_seqs=config.max_num_seqs, max_model_len=max_model_len, block_size=config.block_size
        )
        self._params = SamplingRows(max_num_seqs=config.max_num_seqs, vocab_size=self._vocab_size, device=self._device)
        self._guided = GuidedRows(compiler, vocab_size=self._vocab_size, device=self._device)
        self._prompt_logprobs: dict[int, PromptLogprobsRow] = {}
        self._refused: dict[str, str] = {}

    @torch.inference_mode()
    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        self._apply(plan)
        if not plan.num_scheduled_tokens:
            return ModelRunnerOutput(sampled_token_ids={})
        step = self._batch.prepare(plan)
        logits = self._forward(step)
        prompt_logprobs = self._collect_prompt_logprobs(step) if self._prompt_logprobs else {}
        self._batch.advance(step)
        result = self._finish(step, logits, prompt_logprobs)
        self._model.forget_last_forward()
        return result

    def _apply(self, plan: SchedulerOutput) -> None:
        freed, added = self._batch.apply(plan)
        for row in freed:
            self._params.remove(row)
            self._guided.remove(row)
            self._prompt_logprobs.pop(row, None)
        for request_id in plan.finished:
            self._refused.pop(request_id, None)
        for row, request in added:
            self._add_params(row, request)

    def _add_params(self, row: int, request: NewRequest) -> None:
        try:
            self._params.add(row, request)
            self._guided.add(row, request)
        except RoundhouseError as error:
            self._refused[request.request_id] = error.message
        except Exception:
            logger.exception("the sampler cannot take a request's parameters", extra={"request_id": request.request_id})
            self._refused[request.request_id] = SAMPLER_FAILED
        k = request.sampling_params.prompt_logprobs
        # With outputs the prompt was complete once, and its logprobs were delivered then.
        if k is not None and request.num_output_tokens == 0:
            assert request.num_computed_tokens == 0, "prompt_logprobs need every token of the prompt computed"
            self._prompt_logprobs[row] = PromptLogprobsRow(request.num_prompt_tokens, k)

    def _forward(self, step: StepInput) -> torch.Tensor:
        logits = self._model.forward(
            torch.from_numpy(step.token_ids).to(self._device),
            torch.from_numpy(step.positions).to(self._device),
            self._backend.begin(step.attention),
            torch.from_numpy(step.logits_indices).to(self._device),
        )
        return logits[:, : self._vocab_size]

    def _finish(
        self, step: StepInput, logits: torch.Tensor, prompt_logprobs: dict[str, PromptLogprobs]
    ) -> ModelRunnerOutput:
        failed = {key: why for key, why in self._refused.items() if key in step.request_ids} if self._refused else {}
        if len(step.sampling) == 0:
            return ModelRunnerOutput(sampled_token_ids={}, prompt_logprobs=prompt_logprobs, failed=failed)
        rows = step.rows[step.sampling]
        request_ids = [step.request_ids[place] for place in step.sampling.tolist()]
        num_outputs = self._batch.num_tokens[rows] - self._batch.num_prompt_tokens[rows]
        if self._guided:
            self._params.masks = self._guided.compute_masks(rows.tolist())
            for place in np.flatnonzero(np.isin(rows, self._params.masks.failed)).tolist():
                failed.setdefault(request_ids[place], GRAMMAR_FAILED)
        sampled = self._sample_all(step, logits, rows, request_ids, num_outputs, failed)
        if failed or not sampled.is_valid.all():
            rows, request_ids, sampled = self._drop_failed(rows, request_ids, sampled, failed)
        self._batch.append_tokens(rows, sampled.token_ids)
        self._params.append_tokens(rows, sampled.token_ids)
        token_ids = sampled.token_ids.tolist()
        ended = self._end_grammars(rows.tolist(), request_ids, token_ids) if self._guided else []
        return ModelRunnerOutput(
            sampled_token_ids={key: [token_id] for key, token_id in zip(request_ids, token_ids, strict=True)},
            logprobs={request_ids[place]: lists for place, lists in sampled.logprobs.items()},
            prompt_logprobs={key: rows for key, rows in prompt_logprobs.items() if key not in failed},
            failed=failed,
            ended=ended,
        )

    def _end_grammars(self, rows: list[int], request_ids: list[str], token_ids: list[int]) -> list[str]:
        self._params.masks = NO_MASKS
        ended = self._guided.append_tokens(rows, token_ids)
        return [request_id for row, request_id in zip(rows, request_ids, strict=True) if row in ended]

    def _sample_all(
        self,
        step: StepInput,
        logits: torch.Tensor,
        rows: np.ndarray,
        request_ids: list[str],
        num_outputs: np.ndarray,
        failed: dict[str, str],
    ) -> SamplerOutput:
        """A sampler that chokes on one row may not take the others along: each then gets a try of its own, and those
        that fail again are added to `failed`.
        """
        try:
            return self._sample(logits, rows, num_outputs, self._params)
        except Exception:
            logger.exception("the sampler failed; every request of the step is sampled alone")
        # The first try may have edited its logits.
        logits = self._logits_of(torch.from_numpy(step.logits_indices).to(self._device))
        sampled = SamplerOutput(np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool), {})
        for place in range(len(rows)):
            one = slice(place, place + 1)
            try:
                alone = self._sample(logits[one], rows[one], num_outputs[one], self._params)
            except Exception:
                logger.exception("the sampler failed on one request", extra={"request_id": request_ids[place]})
                failed.setdefault(request_ids[place], SAMPLER_FAILED)
                continue
            sampled.token_ids[one], sampled.is_valid[one] = alone.token_ids, alone.is_valid
            if 0 in alone.logprobs:
                sampled.logprobs[place] = alone.logprobs[0]
        return sampled

    def _drop_failed(
        self, rows: np.ndarray, request_ids: list[str], sampled: SamplerOutput, failed: dict[str, str]
    ) -> tuple[np.ndarray, list[str], SamplerOutput]:
        """What is left of the sample without the rows that failed, which are added to `failed`."""
        for place in np.flatnonzero(~sampled.is_valid).tolist():
            failed.setdefault(request_ids[place], NO_TOKEN_POSSIBLE)
            self._store.clear_not_finite(self._batch.block_ids(int(rows[place])))
        kept = [place for place, request_id in enumerate(request_ids) if request_id not in failed]
        logprobs: dict[int, LogprobsLists] = {
            there: sampled.logprobs[place] for there, place in enumerate(kept) if place in sampled.logprobs
        }
        left = SamplerOutput(sampled.token_ids[kept], sampled.is_valid[kept], logprobs)
        return rows[kept], [request_ids[place] for place in kept], left

    def _collect_prompt_logprobs(self, step: StepInput) -> dict[str, PromptLogprobs]:
        finished: dict[str, PromptLogprobs] = {}
        for place, (request_id, row) in enumerate(zip(step.request_ids, step.rows.tolist(), strict=True)):
            collector = self._prompt_logprobs.get(row)
            if collector is None:
                continue
            first = int(self._batch.num_computed[row])
            end = first + int(step.num_scheduled[place])
            last = min(end, int(self._batch.num_prompt_tokens[row]) - 1)
            next_token_ids = self._batch.token_ids[row, first + 1 : last + 1]
            try:
                collector.add_chunk(
                    first, next_token_ids, int(step.attention.query_starts[place]), self._logits_of, self._device
                )
            except Exception:
                logger.exception("no logprobs of a prompt", extra={"request_id": request_id})
                self._refused[request_id] = PROMPT_LOGPROBS_FAILED
                del self._prompt_logprobs[row]
                continue
            if end >= self._batch.num_prompt_tokens[row]:
                finished[request_id] = self._prompt_logprobs.pop(row).finish()
        return finished

    def _logits_of(self, indices: torch.Tensor) -> torch.Tensor:
        return self._model.logits_of_last_forward(indices)[:, : self._vocab_size]
