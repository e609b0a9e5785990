"""What can go wrong between the MODEL a user typed and a folder that can be served.

    ModelError (protocol.errors)
    ├── ModelUnavailable       no such folder or file, no such repository on the hub
    ├── ModelFolderInvalid     the folder lacks a part, is damaged, or holds pickled weights only
    ├── HubUnreachable         no network, or HF_HUB_OFFLINE; a retry helps
    ├── HubAccessDenied        a private or gated repository without a token that opens it
    ├── CacheUnusable          the cache folder cannot be written, or the disk is full
    ├── ConversionFailed       a GGUF file or an old tokenizer cannot be turned into what we read
    ├── TokenizerInvalid       tokenizer.json is not one
    ├── InvalidText            text that has no UTF-8 form; a ValueError too
    ├── ChatTemplateMissing    the model has no chat template
    ├── ChatTemplateInvalid    the model's template does not compile
    └── ChatTemplateError      the template refuses these messages
        └── ChatTemplateTooExpensive   it takes too long, or writes too much

The last four concern a request, the others end a start. Every message is one line.
"""

from __future__ import annotations

from roundhouse.protocol.errors import ModelError


def is_library_fault(error: BaseException) -> bool:
    """Whether a library failed: by any exception, or by a panic where it is written in Rust, which arrives as a
    BaseException that cannot be imported. False for an interrupt and the like: they are to go on.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


class ModelUnavailable(ModelError):
    code = "model_unavailable"


class ModelFolderInvalid(ModelError):
    code = "model_folder_invalid"


class HubUnreachable(ModelError):
    code = "hub_unreachable"
    retry_helps = True


class HubAccessDenied(ModelError):
    code = "hub_access_denied"


class CacheUnusable(ModelError):
    code = "cache_unusable"


class ConversionFailed(ModelError):
    code = "conversion_failed"


class TokenizerInvalid(ModelError):
    code = "tokenizer_invalid"


class InvalidText(ModelError, ValueError):
    code = "invalid_text"
    http_status = 400


class ChatTemplateMissing(ModelError):
    code = "chat_template_missing"
    http_status = 400


class ChatTemplateInvalid(ModelError):
    code = "chat_template_invalid"


class ChatTemplateError(ModelError):
    code = "chat_template_error"
    http_status = 400


class ChatTemplateTooExpensive(ChatTemplateError):
    code = "chat_template_too_expensive"
