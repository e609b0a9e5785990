"""`RequestState`: one choice, from the engine's tokens to what its client is shown. One per id that an engine knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundhouse.frontend.detokenizer import Detokenizer, Shown
from roundhouse.frontend.logprobs import LogprobsProcessor
from roundhouse.frontend.outputs import CompletionOutput, PositionLogprobs, RequestOutputKind
from roundhouse.frontend.stats import RequestStats
from roundhouse.model_store.tokenizer import Tokenizer
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreRequest, PoolingParams
from roundhouse.protocol.sampling import FinishReason, SamplingParams

if TYPE_CHECKING:
    from roundhouse.frontend.parent_request import ParentRequest


class RequestState:
    """Tokens are received, then shown (no stop string can take them away any more), then sent (in an output).

    `params` are the client's, stop strings included. `token_ids` are the received tokens that count: all of them until
    a stop string takes the last ones away. `stop_reason` belongs to `finish_reason`, which is set once.
    """

    __slots__ = (
        "_cumulative_logprob",
        "_detokenizer",
        "_has_news",
        "_logprobs",
        "_logprobs_processor",
        "_num_sent",
        "_num_shown",
        "_texts",
        "attempt",
        "finish_reason",
        "index",
        "parent",
        "request_id",
        "stats",
        "stop_reason",
        "token_ids",
    )

    def __init__(
        self,
        request: EngineCoreRequest,
        params: SamplingParams | PoolingParams,
        parent: ParentRequest,
        tokenizer: Tokenizer,
        *,
        arrival_s: float,
    ) -> None:
        self.request_id = request.request_id
        self.parent = parent
        self.index = request.child_index
        self.attempt = request.attempt
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.stats = RequestStats(arrival_s, len(request.prompt_token_ids))
        self._detokenizer = None
        self._logprobs_processor = None
        if isinstance(params, SamplingParams):
            if params.detokenize:
                self._detokenizer = Detokenizer(tokenizer, request.prompt_token_ids, params)
            if params.logprobs is not None:
                self._logprobs_processor = LogprobsProcessor(tokenizer)
        self._texts: list[str] = []
        self._logprobs: list[PositionLogprobs] = []
        self._cumulative_logprob = 0.0
        self._num_shown = 0
        self._num_sent = 0
        self._has_news = False

    def append(self, output: EngineCoreOutput) -> None:
        """Takes in the next tokens and the end, if this is it; a stop string ends the choice here as well."""
        new_token_ids, reason = output.new_token_ids, output.finish_reason
        if self._logprobs_processor is not None and output.new_logprobs is not None:
            self._logprobs += self._logprobs_processor.positions(output.new_logprobs, self.token_ids)
        self.token_ids += new_token_ids
        if self._detokenizer is None:
            shown = Shown("", len(new_token_ids))
        else:
            shown = self._detokenizer.update(
                new_token_ids,
                ends_with_stop_token=reason is FinishReason.STOP and bool(new_token_ids),
                finished=reason is not None,
            )
        self._show(shown)
        if shown.stop is not None:
            self._trim()
            self.finish_reason, self.stop_reason = FinishReason.STOP, shown.stop
        elif reason is not None:
            self.finish_reason, self.stop_reason = reason, output.stop_reason

    def finish(self, reason: FinishReason) -> None:
        """Ends the choice from this side; what was held back is shown."""
        if self._detokenizer is not None:
            self._show(self._detokenizer.update((), finished=True))
        self.finish_reason = reason

    def take_output(self, kind: RequestOutputKind) -> CompletionOutput | None:
        """What `kind` wants sent now, or None."""
        finished = self.finish_reason is not None
        if kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        if not finished and not self._has_news:
            return None
        text = "".join(self._texts)
        token_ids = self.token_ids[self._num_sent : self._num_shown]
        logprobs = None
        if self._logprobs_processor is not None:
            logprobs = self._logprobs[: len(token_ids)]
        if kind is RequestOutputKind.DELTA:
            self._texts.clear()
            del self._logprobs[: len(token_ids)]
            self._num_sent = self._num_shown
        else:
            self._texts = [text]
        self._has_news = False
        return CompletionOutput(
            self.index,
            text,
            token_ids,
            None if logprobs is None else self._cumulative_logprob,
            logprobs,
            None if self.finish_reason is None else str(self.finish_reason),
            self.stop_reason,
        )

    def _show(self, shown: Shown) -> None:
        self._has_news = self._has_news or bool(shown.num_tokens or shown.text)
        self._texts.append(shown.text)
        if self._logprobs_processor is not None:
            first = self._num_shown - (len(self.token_ids) - len(self._logprobs))
            for position in self._logprobs[first : first + shown.num_tokens]:
                self._cumulative_logprob += position.sampled.logprob
        self._num_shown += shown.num_tokens

    def _trim(self) -> None:
        """Forgets the tokens that the stop string took away."""
        num_trimmed = len(self.token_ids) - self._num_shown
        if num_trimmed:
            del self.token_ids[-num_trimmed:]
            if self._logprobs_processor is not None:
                del self._logprobs[-num_trimmed:]
