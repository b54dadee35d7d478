"""Weights and shapes of Hugging Face transformers' models, for the reference decoder.

GPT-2, Llama, Mistral, Mixtral and Qwen2, as transformers 5 names their parameters. transformers itself is
not imported: a config is read by its attributes and a state dict by its names.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from peakward.records.errors import PeakwardError
from peakward.records.model_shape import Activation, ModelShape

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
}
"""Ours, by their `ACT2FN` key."""


def shape_of(config: Any) -> ModelShape:
    """The shape of the model that a GPT2, Llama, Mistral, Mixtral or Qwen2 config describes.

    Dropout and a router's noise are no part of a shape: the decoder has none.

    Raises:
        PeakwardError: another family, or a choice that the decoder does not have.
    """
    readers = {
        "gpt2": _gpt2_shape,
        "llama": _llama_shape,
        "mistral": _llama_shape,
        "mixtral": _llama_shape,
        "qwen2": _llama_shape,
    }
    if config.model_type not in readers:
        raise PeakwardError(
            f"expected a model of type {', '.join(readers)}, got {config.model_type!r}: "
            "the reference decoder has no such architecture; measure the module itself instead"
        )
    return readers[config.model_type](config)


def decoder_state(state: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """The decoder's state dict from theirs (of the model with its language-model head).

    Linear in the tensors, so that it maps their gradients to ours as well. Dtypes and devices stay.

    Raises:
        PeakwardError: a tensor that the shape asks for is missing.
    """
    convert = _from_gpt2 if "transformer.wte.weight" in state else _from_llama
    try:
        converted = convert(state, shape)
        head = converted["embedding.weight"] if shape.tied_head else state["lm_head.weight"]
    except KeyError as error:
        raise PeakwardError(
            f"expected the weights of {shape.name}, got none named {error.args[0]}: "
            "pass the state dict of the GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM, "
            "MixtralForCausalLM or Qwen2ForCausalLM that the shape was read from"
        ) from error
    return {**converted, "readout.head.weight": head}


def _activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise PeakwardError(
            f"expected an activation of {', '.join(ACTIVATIONS)}, got {name!r}, "
            "which the reference decoder does not have"
        )
    return ACTIVATIONS[name]


def _refuse(config: Any, unsupported: Mapping[str, bool]) -> None:
    for what, present in unsupported.items():
        if present:
            raise PeakwardError(
                f"expected a {config.model_type} model that the reference decoder can express, "
                f"got one with {what}: measure the module itself instead"
            )


def _gpt2_shape(config: Any) -> ModelShape:
    _refuse(
        config,
        {
            "unscaled attention": not config.scale_attn_weights,
            "attention scaled by layer": config.scale_attn_by_inverse_layer_idx,
            "cross-attention": config.add_cross_attention,
        },
    )
    return ModelShape(
        name=config.name_or_path or config.model_type,
        vocab_size=config.vocab_size,
        n_layers=config.n_layer,
        d_model=config.n_embd,
        d_ff=config.n_inner if config.n_inner is not None else 4 * config.n_embd,
        n_heads=config.n_head,
        n_kv_heads=config.n_head,
        head_dim=config.n_embd // config.n_head,
        max_seq_len=config.n_positions,
        norm="layernorm",
        norm_eps=config.layer_norm_epsilon,
        activation=_activation(config.activation_function),
        gated=False,
        positions="learned",
        tied_head=config.tie_word_embeddings,
        qkv_bias=True,
        bias=True,
    )


def _llama_shape(config: Any) -> ModelShape:
    rope = config.rope_parameters
    kinds = set(getattr(config, "layer_types", None) or ())
    attention_bias = getattr(config, "attention_bias", False)
    n_experts = getattr(config, "num_local_experts", 1)
    _refuse(
        config,
        {
            f"rope of type {rope['rope_type']}": rope["rope_type"] != "default",
            "partial rotation": rope.get("partial_rotary_factor") not in (None, 1.0),
            "full and windowed layers mixed": len(kinds) > 1,
            "attention biases without feed-forward biases, or the reverse": (
                attention_bias != getattr(config, "mlp_bias", False)
            ),
            "a router before one expert": config.model_type == "mixtral" and n_experts == 1,
            "a loss on its router": getattr(config, "output_router_logits", False),
        },
    )
    head_dim = getattr(config, "head_dim", None)
    return ModelShape(
        name=config.name_or_path or config.model_type,
        vocab_size=config.vocab_size,
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        d_ff=config.intermediate_size,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        head_dim=head_dim or config.hidden_size // config.num_attention_heads,
        max_seq_len=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        activation=_activation(config.hidden_act),
        n_experts=n_experts,
        n_active_experts=getattr(config, "num_experts_per_tok", 1),
        rope_theta=rope["rope_theta"],
        window=None if kinds == {"full_attention"} else getattr(config, "sliding_window", None),
        tied_head=config.tie_word_embeddings,
        qkv_bias=attention_bias or config.model_type == "qwen2",
        bias=attention_bias,
    )


def _from_gpt2(state: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """Their Conv1D holds (in, out), a linear layer (out, in); query, key, value are packed in both."""
    names = {
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "ff_norm": "ln_2",
        "ff.up": "mlp.c_fc",
        "ff.down": "mlp.c_proj",
    }
    ours = {
        "embedding.weight": state["transformer.wte.weight"],
        "position_embedding.weight": state["transformer.wpe.weight"],
        "readout.norm.weight": state["transformer.ln_f.weight"],
        "readout.norm.bias": state["transformer.ln_f.bias"],
    }
    for layer in range(shape.n_layers):
        for name, theirs in names.items():
            weight = state[f"transformer.h.{layer}.{theirs}.weight"]
            ours[f"blocks.{layer}.{name}.weight"] = weight.t() if weight.dim() == 2 else weight
            ours[f"blocks.{layer}.{name}.bias"] = state[f"transformer.h.{layer}.{theirs}.bias"]
    return ours


def _from_llama(state: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """Their separate projections, stacked as the decoder packs them: q, k, v and gate, up."""
    attention = [f"self_attn.{each}_proj" for each in "qkv"]
    packed = {
        "attention_norm.weight": ["input_layernorm.weight"],
        "attention.qkv.weight": [f"{each}.weight" for each in attention],
        "attention.out.weight": ["self_attn.o_proj.weight"],
        "ff_norm.weight": ["post_attention_layernorm.weight"],
        "ff.up.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
        "ff.down.weight": ["mlp.down_proj.weight"],
    }
    if shape.n_experts > 1:  # Of all experts in one tensor, packed as the decoder's.
        packed["ff.router.weight"] = ["mlp.gate.weight"]
        packed["ff.up.weight"] = ["mlp.experts.gate_up_proj"]
        packed["ff.down.weight"] = ["mlp.experts.down_proj"]
    if shape.qkv_bias:
        packed["attention.qkv.bias"] = [f"{each}.bias" for each in attention]
    if shape.bias:
        packed["attention.out.bias"] = ["self_attn.o_proj.bias"]
        packed["ff.up.bias"] = ["mlp.gate_proj.bias", "mlp.up_proj.bias"]
        packed["ff.down.bias"] = ["mlp.down_proj.bias"]
    ours = {
        "embedding.weight": state["model.embed_tokens.weight"],
        "readout.norm.weight": state["model.norm.weight"],
    }
    for layer in range(shape.n_layers):
        for name, theirs in packed.items():
            parts = [state[f"model.layers.{layer}.{each}"] for each in theirs]
            ours[f"blocks.{layer}.{name}"] = torch.cat(parts) if len(parts) > 1 else parts[0]
    return ours
