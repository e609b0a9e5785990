"""Random models of several families, small enough to compare with their own eager forward pass in milliseconds."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    CohereConfig,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.modeling_utils import AttentionInterface
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from roundhouse.models.attention import IMPLEMENTATION, paged_attention_forward

VOCAB_SIZE = 101
MAX_MODEL_LEN = 128
WINDOW = 6

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_MODEL_LEN,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SLIDING_THEN_FULL = ["sliding_attention", "full_attention"]

CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**_SIZES),
    "qwen2": lambda: Qwen2Config(**_SIZES),
    "qwen3": lambda: Qwen3Config(**_SIZES),
    "mistral-sliding": lambda: MistralConfig(**_SIZES, sliding_window=WINDOW),
    "gemma2-softcap-sliding": lambda: Gemma2Config(
        **_SIZES,
        sliding_window=WINDOW,
        layer_types=_SLIDING_THEN_FULL,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
        query_pre_attn_scalar=16,
    ),
    "gemma3-sliding": lambda: Gemma3TextConfig(
        **_SIZES, sliding_window=WINDOW, layer_types=_SLIDING_THEN_FULL, query_pre_attn_scalar=16
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=MAX_MODEL_LEN,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "mixtral-experts": lambda: MixtralConfig(**_SIZES, num_local_experts=4),
    "phi3": lambda: Phi3Config(**{key: value for key, value in _SIZES.items() if key != "head_dim"}),
    "granite-logit-scaling": lambda: GraniteConfig(
        **_SIZES, logits_scaling=4.0, attention_multiplier=0.3, residual_multiplier=0.5
    ),
    "cohere-logit-scale": lambda: CohereConfig(**_SIZES, logit_scale=0.5),
    "deepseek-v3-latent-attention": lambda: DeepseekV3Config(
        **{**_SIZES, "num_key_value_heads": 4, "head_dim": 4},
        kv_lora_rank=8,
        q_lora_rank=12,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        first_k_dense_replace=1,
    ),
    "gpt-oss-sinks": lambda: GptOssConfig(
        **_SIZES, sliding_window=WINDOW, layer_types=_SLIDING_THEN_FULL, num_local_experts=4, num_experts_per_tok=2
    ),
}


def tiny_model(family: str, *, paged: bool = True, seed: int = 0) -> PreTrainedModel:
    """The same weights for the same family and seed, with our attention or with transformers' own eager one."""
    AttentionInterface.register(IMPLEMENTATION, paged_attention_forward)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        CONFIGS[family](), attn_implementation=IMPLEMENTATION if paged else "eager", dtype=torch.float32
    )
    for parameter in model.parameters():
        # The usual initialization leaves scores near zero, where softcap, sinks and windows hardly matter.
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()
