"""`LLM`: prompts in, answers out, all at once, in the caller's process. Names and behaviour are vLLM's."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, cast

from roundhouse.frontend.input_processor import Prompt
from roundhouse.frontend.outputs import CompletionOutput, RequestOutput, RequestOutputKind
from roundhouse.model_store import ChatTemplate, Tokenizer, load_chat_template, resolve_model
from roundhouse.offline.chat_prompts import Conversation, text_only
from roundhouse.offline.engine_args import EngineArgs
from roundhouse.offline.interrupts import interrupts_between_steps
from roundhouse.offline.llm_engine import LLMEngine
from roundhouse.offline.progress import request_progress
from roundhouse.protocol.errors import EngineGenerateError, InvalidRequest, RequestError, RoundhouseError
from roundhouse.protocol.sampling import FinishReason, SamplingParams

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """An engine that is loaded and warm. Belongs to one thread.

    Takes the fields of `EngineArgs` as keywords. Raises `ModelError` or `ConfigError` when the model or a setting is
    wrong.
    """

    def __init__(self, model: str = "smollm2", **engine_args: Any) -> None:
        args = EngineArgs(model=model, **engine_args)
        folder = resolve_model(model, revision=args.revision).path
        self._start(LLMEngine.from_engine_args(replace(args, model=str(folder))), load_chat_template(folder))

    @classmethod
    def with_engine(cls, llm_engine: LLMEngine, chat_template: ChatTemplate) -> Self:
        """Around an engine that is there already; its requests have all ended."""
        llm = cls.__new__(cls)
        llm._start(llm_engine, chat_template)
        return llm

    def _start(self, llm_engine: LLMEngine, chat_template: ChatTemplate) -> None:
        self.llm_engine = llm_engine
        self._chat_template = chat_template
        self._request_ids = map(str, itertools.count())

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        lora_request: Any = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The answers in the order of the prompts.

        prompts: one or several of: a text, a list of token ids, `{"prompt": text}`, `{"prompt_token_ids": ids}`.
        sampling_params: for all prompts, or one for each; None is what the model recommends. use_tqdm: show a progress
        bar on a terminal. priority: one for each prompt, lower runs first; for the priority policy.

        Raises a `RequestError` that names the first prompt which cannot be run, or says that the engine still has
        requests which somebody added to it; then none is run. A request that failed later, or whose prompt broke the
        tokenizer, has `finish_reason` "error" and the `error` in its output, and the others their answers. Raises
        `EngineDeadError` when the engine itself failed. Interrupted, it ends every request, and may be called again.
        """
        if self.llm_engine.has_unfinished_requests():
            raise InvalidRequest("the engine has requests of its own: step it until they have ended")
        each = _as_list(prompts)
        params = self._params_for_each(sampling_params, len(each))
        priorities = _for_each("priority", priority, len(each), 0)
        request_ids: list[str] = []
        failed: dict[str, RequestOutput] = {}
        try:
            for index, prompt in enumerate(each):
                request_id = next(self._request_ids)
                try:
                    self.llm_engine.add_request(
                        request_id,
                        prompt,
                        params[index],
                        lora_request=lora_request,
                        tokenization_kwargs=tokenization_kwargs,
                        priority=priorities[index],
                        output_kind=RequestOutputKind.FINAL_ONLY,
                    )
                except RequestError as error:
                    raise type(error)(f"prompts[{index}]: {error.message}", param=error.param) from error
                except EngineGenerateError as error:
                    failed[request_id] = _untokenized(request_id, prompt, params[index], error)
                request_ids.append(request_id)
            outputs = failed | self._run(len(each) - len(failed), show_progress=use_tqdm)
        except BaseException:
            self.llm_engine.abort_request(request_ids)
            raise
        return [outputs[request_id] for request_id in request_ids]

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        lora_request: Any = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The answers to one conversation or to several, each written out by the model's own template.

        A message has a `role` and a `content`, which is a text or a list of parts of type text. Raises what `generate`
        raises, `InvalidRequest` for a message that is none, and `ModelError` when the model has no template or its
        template refuses the messages.
        """
        conversations = cast(Sequence[Conversation], [messages] if _is_conversation(messages) else messages)
        prompts = [
            self._chat_template.render(
                text_only(f"messages[{index}]", conversation),
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs=chat_template_kwargs,
            )
            for index, conversation in enumerate(conversations)
        ]
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            tokenization_kwargs={"add_special_tokens": False},  # the template writes its own
        )

    def get_tokenizer(self) -> Tokenizer:
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model recommends; vLLM's defaults where it recommends nothing."""
        recommended = self.llm_engine.tokenizer.default_sampling
        values = {name: getattr(recommended, name) for name in recommended.__slots__}
        return SamplingParams(**{name: value for name, value in values.items() if value is not None})

    def _params_for_each(self, given: Params, count: int) -> Sequence[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [given or self.get_default_sampling_params()] * count
        each = _for_each("sampling_params", list(given), count, SamplingParams())
        if not all(isinstance(params, SamplingParams) for params in each):
            raise InvalidRequest("sampling_params is a SamplingParams or a list of them", param="sampling_params")
        return each

    def _run(self, count: int, *, show_progress: bool) -> dict[str, RequestOutput]:
        """Steps until every request has ended: all outputs by their ids."""
        outputs: dict[str, RequestOutput] = {}
        with request_progress(count, is_shown=show_progress) as advance, interrupts_between_steps() as may_interrupt:
            while self.llm_engine.has_unfinished_requests():
                for output in self.llm_engine.step():
                    outputs[output.request_id] = output
                    advance(output)
                may_interrupt()
        return outputs


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    """One prompt may stand for a list of one; a list of numbers is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, Iterable):
        each = list(prompts)
        return [each] if each and isinstance(each[0], int) else each
    raise InvalidRequest("a prompt is a text or a list of token ids", param="prompt")


def _untokenized(request_id: str, prompt: Prompt, params: SamplingParams, error: RoundhouseError) -> RequestOutput:
    """The output of a request that never came to be: a fault that its prompt led to is no reason to run none."""
    text = prompt if isinstance(prompt, str) else prompt.get("prompt") if isinstance(prompt, Mapping) else None
    choices = [CompletionOutput(index, "", [], finish_reason=str(FinishReason.ERROR)) for index in range(params.n)]
    return RequestOutput(request_id, text, [], choices, finished=True, error=error)


def _is_conversation(messages: object) -> bool:
    return isinstance(messages, Sequence) and bool(messages) and isinstance(messages[0], Mapping)


def _for_each(name: str, given: Sequence[Any] | None, count: int, default: Any) -> Sequence[Any]:
    if given is None:
        return [default] * count
    if len(given) != count:
        raise InvalidRequest(f"{name} has {len(given)} entries for {count} prompts", param=name)
    return given
