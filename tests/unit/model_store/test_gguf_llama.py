from pathlib import Path
from typing import Any

import pytest

from roundhouse.model_store import gguf_llama
from roundhouse.model_store.errors import ConversionFailed
from roundhouse.model_store.gguf_file import GgufFile, GgufTensor
from tests.unit.model_store import tiny


def gguf(*more: str, **changes: Any) -> GgufFile:
    shapes = tiny.llama_shapes() | dict.fromkeys(more, (2,))
    tensors = tuple(GgufTensor(name, shape, 0, 0) for name, shape in shapes.items())
    return GgufFile(Path("m.gguf"), tiny.metadata(**changes), tensors)


def test_names() -> None:
    assert [gguf_llama.target_name(name) for name in tiny.llama_shapes()] == [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    ]
    assert gguf_llama.target_name("output.weight") == "lm_head.weight"
    assert gguf_llama.target_name("blk.0.ffn_gate_exps.weight") is None
    assert gguf_llama.target_name("blk.0.attn_q.bias") is None


def test_only_what_the_table_covers_is_converted_by_it() -> None:
    assert gguf_llama.can_convert(gguf())
    assert gguf_llama.can_convert(gguf("output.weight", "rope_freqs.weight"))
    assert not gguf_llama.can_convert(gguf("blk.0.attn_q.bias"))
    assert not gguf_llama.can_convert(gguf(general__architecture="qwen2"))
    assert not gguf_llama.can_convert(gguf(llama__rope__scaling__type="yarn"))


def test_config() -> None:
    expected: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": len(tiny.vocabulary()),
        "hidden_size": 8,
        "intermediate_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    float32_of_1e_5 = 9.999999747378752e-06
    assert gguf_llama.config(gguf(llama__attention__layer_norm_rms_epsilon=float32_of_1e_5), None) == expected
    assert gguf_llama.config(gguf("output.weight"), None) == expected | {"tie_word_embeddings": False}


def test_a_file_without_a_size_is_refused() -> None:
    with pytest.raises(ConversionFailed, match="has no embedding_length"):
        gguf_llama.config(gguf(llama__embedding_length=None), None)


def test_a_file_without_all_of_its_model_is_refused() -> None:
    with pytest.raises(ConversionFailed) as caught:
        gguf_llama.config(gguf(llama__block_count=2), None)
    assert caught.value.message == ("the GGUF file lacks 9 of its model's tensors, the first is blk.1.attn_k.weight")


def test_sizes_of_another_kind_are_refused() -> None:
    with pytest.raises(ConversionFailed, match="describes its model in a way that is not known"):
        gguf_llama.config(gguf(llama__block_count="one"), None)
    with pytest.raises(ConversionFailed, match=r"lacks [0-9]+ of its model's tensors"):
        gguf_llama.config(gguf(llama__block_count=2**32 - 1), None)
    with pytest.raises(ConversionFailed, match="describes its model in a way that is not known"):
        gguf_llama.config(gguf(llama__embedding_length="eight", llama__rope__dimension_count=None), None)


def test_llama_3_scales_positions_by_factors_that_are_recognised() -> None:
    # Llama 3.2 1B's, by the formula its config stands for.
    factors = [1.0] * 15 + [1.6513, 3.2923, 9.6667] + [32.0] * 14
    assert gguf_llama.llama3_rope(factors, 500000.0, 64) == {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    with pytest.raises(ConversionFailed, match="only its author's config knows"):
        gguf_llama.llama3_rope([1.0] * 16 + [2.0] + [32.0] * 15, 500000.0, 64)


def test_rows_of_queries_and_keys_are_interleaved_by_head() -> None:
    heads = {name: gguf_llama.interleaved_heads(name, gguf()) for name in tiny.llama_shapes()}
    assert {name: count for name, count in heads.items() if count is not None} == {
        "blk.0.attn_q.weight": 2,
        "blk.0.attn_k.weight": 1,
    }
