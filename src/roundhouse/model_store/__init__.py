"""From the MODEL a user typed to a folder on this machine; its tokenizer and chat template, which need no torch.

A leaf: it imports the standard library, tokenizers, jinja2, rich, huggingface_hub, `protocol.errors` and `lifeline`,
nothing else of ours. Only `convert`, which runs as a process of its own, knows torch, transformers and gguf. Callers:
`frontend`, `server`, `cli`.
"""

from roundhouse.model_store.cache import default_cache_dir
from roundhouse.model_store.chat_template import ChatTemplate, load_chat_template
from roundhouse.model_store.fingerprint import fingerprint
from roundhouse.model_store.folder import ModelFolder
from roundhouse.model_store.model_config import DefaultSampling, ModelConfig, read_model_config
from roundhouse.model_store.progress import ProgressEvent, Report
from roundhouse.model_store.resolve import resolve_model
from roundhouse.model_store.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "ChatTemplate",
    "DefaultSampling",
    "ModelConfig",
    "ModelFolder",
    "ProgressEvent",
    "Report",
    "Tokenizer",
    "default_cache_dir",
    "fingerprint",
    "load_chat_template",
    "load_tokenizer",
    "read_model_config",
    "resolve_model",
]
