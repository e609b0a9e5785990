"""A loaded transformers causal LM as the runner sees it: a flattened batch of token ids in, logits out."""

from __future__ import annotations

import copy
from typing import Any

import torch

from roundhouse.models.attention import ARGUMENT, StepAttention
from roundhouse.models.inspection import LayerShape


class CausalLM:
    """layers: one per attention layer. vocab_size: width of the logits, which may be more than the tokenizer has."""

    def __init__(self, module: Any, layers: list[LayerShape], *, max_model_len: int) -> None:
        self.module = module
        self.layers = layers
        self.max_model_len = max_model_len
        self.vocab_size: int = module.get_output_embeddings().weight.shape[0]
        self.dtype: torch.dtype = module.dtype
        self.device: torch.device = module.get_input_embeddings().weight.device
        self._head, self._replay = _split_head(module)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: StepAttention, logits_indices: torch.Tensor
    ) -> torch.Tensor:
        """Logits [len(logits_indices), vocab_size] of those tokens; the family's own code scales them.

        token_ids, positions: int64 [T]; each request's tokens stand together, and `attention` knows where one ends.
        """
        return self.module(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=logits_indices,
            **{ARGUMENT: attention},
        ).logits[0]

    def hidden_states(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: StepAttention) -> torch.Tensor:
        """What the last layer leaves of each token, [T, hidden size]; arguments as of `forward`."""
        self.module.base_model(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            **{ARGUMENT: attention},
        )
        return self._replay.outputs.last_hidden_state[0]

    def keep_hidden_states(self, hidden: torch.Tensor) -> None:
        """Makes `hidden` [T, hidden size], of several calls of `hidden_states`, the last forward."""
        self._replay.outputs = type(self._replay.outputs)(last_hidden_state=hidden.unsqueeze(0))

    def logits_of_last_forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Logits [len(indices), vocab_size] of more tokens of the last forward, without a second pass through it."""
        return self._head(input_ids=None, use_cache=False, logits_to_keep=indices).logits[0]

    def forget_last_forward(self) -> None:
        self._replay.outputs = None


class _Replay(torch.nn.Module):
    """Stands where the family's head expects the layers, and repeats what the real ones last returned."""

    outputs: Any = None

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.outputs

    def keep(self, _module: Any, _arguments: Any, outputs: Any) -> None:
        self.outputs = outputs


def _split_head(module: Any) -> tuple[Any, _Replay]:
    """A copy of `module` that shares its weights but has a `_Replay` for its layers, fed by a hook on the real ones.

    So the head is the family's own code, with whatever it does to logits, and can run over any rows at any time.
    """
    replay = _Replay()
    module.base_model.register_forward_hook(replay.keep)
    head = copy.copy(module)
    head._modules = dict(module._modules)
    head._modules[module.base_model_prefix] = replay
    return head, replay
