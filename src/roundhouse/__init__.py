"""Roundhouse serves large language models on Kubernetes.

The public names are imported on first use, so that a frontend never imports torch and an engine never imports FastAPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roundhouse.frontend.async_llm import AsyncLLM as AsyncLLM
    from roundhouse.offline.engine_args import EngineArgs as EngineArgs
    from roundhouse.offline.llm import LLM as LLM
    from roundhouse.offline.llm_engine import LLMEngine as LLMEngine
    from roundhouse.protocol.messages import PoolingParams as PoolingParams
    from roundhouse.protocol.sampling import SamplingParams as SamplingParams
    from roundhouse.protocol.sampling import StructuredOutputsParams as StructuredOutputsParams

__version__ = "0.1.0"

_HOMES = {
    "LLM": "roundhouse.offline.llm",
    "AsyncLLM": "roundhouse.frontend.async_llm",
    "EngineArgs": "roundhouse.offline.engine_args",
    "LLMEngine": "roundhouse.offline.llm_engine",
    "PoolingParams": "roundhouse.protocol.messages",
    "SamplingParams": "roundhouse.protocol.sampling",
    "StructuredOutputsParams": "roundhouse.protocol.sampling",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "EngineArgs",
    "LLMEngine",
    "PoolingParams",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
