"""A folder with config.json and safetensors → a `CausalLM`, on a device, in a dtype.

Nothing is downloaded, no code from the folder runs, and only safetensors are read. Weights are created on the meta
device and filled from memory-mapped files, so a bfloat16 model loads in a tenth of a second from a warm page cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from roundhouse.models.attention import IMPLEMENTATION, paged_attention_forward
from roundhouse.models.causal_lm import CausalLM
from roundhouse.models.context_length import check_max_model_len
from roundhouse.models.inspection import record_layers, refuse_by_class, refuse_by_config
from roundhouse.protocol.errors import ModelError

logger = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
"""(tensors loaded, tensors in all)."""


def read_config(folder: Path) -> Any:
    """The folder's transformers config. Raises `ModelError` when there is none, or none that transformers knows."""
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} has no *.safetensors; other weight formats are not read")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers and its validators raise whatever a strange value leads to
        raise ModelError(f"{folder / 'config.json'} cannot be used: {_first_line(error)}") from error
    refuse_by_config(config)
    return config


def load_causal_lm(
    folder: Path,
    config: Any,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int | None = None,
    on_progress: OnProgress | None = None,
) -> CausalLM:
    """Raises `ModelError` when the weights cannot be read or the model cannot be served right.

    max_model_len: None is the longest that the model serves right.
    """
    length = check_max_model_len(config, max_model_len)
    model_class = _class_of(config)
    refuse_by_class(model_class)
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, paged_attention_forward)
    with _progress(on_progress):
        try:
            module, info = model_class.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=IMPLEMENTATION,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except Exception as error:  # as above
            raise ModelError(f"the weights in {folder} cannot be loaded: {_first_line(error)}") from error
    if info["unexpected_keys"]:
        logger.warning("the model does not use these weights: %s", _some_of(info["unexpected_keys"]))
    if info["missing_keys"]:
        # transformers would go on with random ones.
        raise ModelError(f"the weights in {folder} lack {_some_of(info['missing_keys'])}")
    return wrap_module(module.to(device), max_model_len=length)


def wrap_module(module: Any, *, max_model_len: int) -> CausalLM:
    """A transformers module whose attention implementation is ours, looked at and made a `CausalLM`."""
    module.eval().requires_grad_(False)
    return CausalLM(module, record_layers(module, max_model_len=max_model_len), max_model_len=max_model_len)


def _some_of(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (f" and {len(ordered) - 3} more" if len(ordered) > 3 else "")


def _class_of(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM._model_mapping[type(config)]
    except KeyError:
        raise ModelError(f"transformers has no causal language model for {config.model_type}") from None


@contextmanager
def _progress(on_progress: OnProgress | None) -> Iterator[None]:
    """Turns transformers' progress bars into calls of `on_progress`, or into nothing."""
    from transformers.utils import logging

    hook = logging.set_tqdm_hook(lambda _factory, args, kwargs: _CountedIterable(on_progress, *args, **kwargs))
    try:
        yield
    finally:
        logging.set_tqdm_hook(hook)


class _CountedIterable:
    """What transformers uses of tqdm, counting aloud instead of drawing."""

    def __init__(self, on_progress: OnProgress | None, iterable: Any = (), total: int | None = None, **_: Any) -> None:
        self._iterable = iterable
        self._total = len(iterable) if total is None and hasattr(iterable, "__len__") else total or 0
        self._on_progress = on_progress
        self._done = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self._iterable:
            yield item
            self.update()

    def update(self, count: int = 1) -> None:
        self._done += count
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)

    def close(self) -> None:
        pass

    def __enter__(self) -> _CountedIterable:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _first_line(error: Exception) -> str:
    """What went wrong, without the report that some of these errors carry."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
