"""Fields of OpenAI's or vLLM's API that change what a request means and that this server does not serve.

Each is refused with its name unless its value means "off": an answer that silently ignores it would be a wrong answer.
Hints that leave the meaning alone (metadata, store, service_tier …) are ignored like unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from roundhouse.protocol.errors import InvalidRequest
from roundhouse.server.decode import decode

MAX_OFF_VALUE_BYTES = 64
"""A longer value means something; it is not even read."""

UNSERVED: dict[str, tuple[Any, ...]] = {
    "structural_tag": (),
    "best_of": (1,),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
    "return_tokens_as_token_ids": (False,),
    "bad_words": ([],),
    "truncate_prompt_tokens": (),
    "logits_processors": ([],),
    "repetition_detection": (),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "thinking_token_budget": (),
    "mm_processor_kwargs": ({},),
}
"""Of both generating routes: the field and the values besides null that mean it is off."""

UNSERVED_CHAT: dict[str, tuple[Any, ...]] = {
    **UNSERVED,
    "echo": (False,),
    "functions": ([],),
    "function_call": ("none",),
    "chat_template": (),
    "documents": ([],),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
}

UNSERVED_COMPLETION: dict[str, tuple[Any, ...]] = {**UNSERVED, "suffix": ("",), "prompt_embeds": ()}

UNSERVED_TOKENIZE: dict[str, tuple[Any, ...]] = {name: UNSERVED_CHAT[name] for name in ("chat_template", "documents")}


class UnservedFields:
    """Reads nothing of a body but the fields of one table."""

    def __init__(self, off_values: Mapping[str, tuple[Any, ...]]) -> None:
        self._off_values = off_values
        absent = msgspec.field(default_factory=msgspec.Raw)
        fields = [(name, msgspec.Raw, absent) for name in off_values]
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("Unserved", fields))

    def refuse(self, body: bytes) -> None:
        """Raises `InvalidRequest` for the first field that is on."""
        found = decode(self._decoder, body)
        for name, off_values in self._off_values.items():
            if _is_on(bytes(getattr(found, name)), off_values):
                raise InvalidRequest(f"{name} is not served by this server; leave it out", param=name)


def _is_on(text: bytes, off_values: tuple[Any, ...]) -> bool:
    if not text:
        return False
    if len(text) > MAX_OFF_VALUE_BYTES:
        return True
    value = msgspec.json.decode(text)
    return value is not None and not any(type(value) is type(off) and value == off for off in off_values)
