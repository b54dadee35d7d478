"""Small random models of transformers that differ in what a cache and its masks must respect."""

import torch
import transformers

from gguf_files import TOKENS

SIZES = {
    "vocab_size": len(TOKENS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 0,
}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
WINDOWED = "a window in every other layer, soft caps, eager"
MODELS = {
    WINDOWED: (
        "gemma2",
        {"sliding_window": 4, "head_dim": 8},
    ),
    "ALiBi, no positions": ("bloom", {"n_head": 4, "n_layer": 2}),
    "ALiBi of a fixed length": (
        "mpt",
        {"d_model": 32, "n_heads": 4, "n_layers": 2, "expansion_ratio": 2, "max_seq_len": 64},
    ),
    "learned positions": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0}),
    "part of a head is turned, side by side": ("gpt_neox", {}),
    "values narrower than keys, experts": (
        "deepseek_v3",
        {"num_key_value_heads": 4, "v_head_dim": 12, "moe_intermediate_size": 16}
        | LATENT
        | EXPERTS,
    ),
    "layers of two sizes": (
        "gemma4_text",
        {
            "head_dim": 8,
            "global_head_dim": 16,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": len(TOKENS),
        },
    ),
    "scaled angles": ("llama", {"rope_parameters": SCALED}),
    "chunks": (
        "llama4_text",
        {
            "attention_chunk_size": 4,
            "intermediate_size_mlp": 48,
            "head_dim": 8,
            "num_local_experts": 2,
        },
    ),
}


def built(kind, changes):
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**{**SIZES, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for each in model.parameters():
        if each.ndim > 1:  # As drawn, attention is nearly flat, and a wrong mask changes little.
            each.normal_(0, 2 * each.shape[-1] ** -0.5)
    return model
