"""Reads the weights of Hugging Face transformers' models, and maps them and shapes to the reference decoder.

GPT-2, Llama, Mistral, Mixtral and Qwen2, as transformers 5 names their parameters. transformers itself
is not imported: a config is read as its dict, and a state dict by its names.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peakward.models.hugging_face import shape as hugging_face
from peakward.records.errors import PeakwardError, quoted
from peakward.records.model_shape import ModelShape

BEFORE = "take the model as it was before it was quantised, or a .gguf file of it"
"""The advice on weights that mean other numbers beside scales."""
MAPPED = ("gpt2", "llama", "mistral", "mixtral", "qwen2")
"""The model types whose weights `decoder_state` knows by name."""


def shape_of(config: Any) -> ModelShape:
    """The shape of the model that a GPT2, Llama, Mistral, Mixtral or Qwen2 config describes.

    Raises:
        PeakwardError: another family, or a choice that the decoder does not have. Scaled angles of
            RoPE are one here: they cost nothing and change what is computed.
    """
    if config.model_type not in MAPPED:
        raise PeakwardError(
            f"expected a model of type {', '.join(MAPPED)}, got {config.model_type!r}: "
            "the reference decoder has no such architecture; measure the module itself instead"
        )
    held = config.to_dict()
    refuse_scaled_angles(held)
    return hugging_face.shape_of(held, config.name_or_path or config.model_type)


def refuse_scaled_angles(config: Mapping[str, Any]) -> None:
    """
    Raises:
        PeakwardError: the configuration scales the angles of RoPE.
    """
    # transformers takes `rope_scaling` where both are given.
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    # Before transformers 4.43 the key was "type".
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
    if kind != "default":
        raise PeakwardError(
            f"expected a {config['model_type']} model that the reference decoder can express, "
            f"got one with rope of type {kind}: measure the module itself instead"
        )


def tensors_of(weights: Sequence[Path]) -> dict[str, Tensor]:
    """The tensors of all these files of safetensors.

    Raises:
        PeakwardError: safetensors is not installed; a file is damaged, holds quantised weights, or a weight
            that another one has too.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise PeakwardError(
            "expected the package safetensors for a model's weights, got none: "
            "run `pip install 'peakward[models]'`"
        ) from error
    state: dict[str, Tensor] = {}
    for file in weights:
        try:
            held = load_file(file)
        except (SafetensorError, OSError, ValueError) as error:
            raise PeakwardError(
                f"expected whole weights in safetensors, got {file.name}, which is damaged: {error}"
            ) from error
        _expect_wide(held, file.name)
        if twice := sorted(state.keys() & held.keys()):
            raise PeakwardError(
                f"expected each weight in one file, got {twice[0]} in two, {file.name} among them: leave one "
                "set of files in the folder"
            )
        state |= held
    return state


def _expect_wide(state: Mapping[str, Tensor], file: str) -> None:
    """
    Raises:
        PeakwardError: a weight of the file is of whole numbers or of a byte, which mean others beside scales.
            Buffers may be.
    """
    for name, each in state.items():
        is_wide = each.is_floating_point() and each.itemsize > 1
        if name.endswith(("weight", "_proj")) and not is_wide:
            raise PeakwardError(
                f"expected weights of floating-point numbers in 16 bits or more, got {quoted(name)} of "
                f"{file} in {each.dtype}: {BEFORE}"
            )


def decoder_state(state: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """The decoder's state dict from that of the model with its language-model head.

    The mapping is linear in the tensors, so it maps gradients as well. Dtypes and devices stay.

    Raises:
        PeakwardError: A tensor that the shape needs is missing.
    """
    convert = _from_gpt2 if "transformer.wte.weight" in state else _from_llama
    try:
        converted = convert(state, shape)
        head = converted["embedding.weight"] if shape.tied_head else state["lm_head.weight"]
    except KeyError as error:
        raise PeakwardError(
            f"expected the weights of {shape.name}, got none named {error.args[0]}: "
            "take weights and configuration from one GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM, "
            "MixtralForCausalLM or Qwen2ForCausalLM"
        ) from error
    return {**converted, "readout.head.weight": head}


def _from_gpt2(state: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """Maps GPT-2: its Conv1D holds (in, out), a linear layer (out, in); query, key, value are packed in
    both."""
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
    """Maps Llama: its separate projections are stacked as the decoder packs them: q, k, v and gate, up."""
    attention = [f"self_attn.{each}_proj" for each in "qkv"]
    packed = {
        "attention_norm.weight": ["input_layernorm.weight"],
        "attention.qkv.weight": [f"{each}.weight" for each in attention],
        "attention.out.weight": ["self_attn.o_proj.weight"],
        "ff_norm.weight": ["post_attention_layernorm.weight"],
        "ff.up.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
        "ff.down.weight": ["mlp.down_proj.weight"],
    }
    if shape.n_experts > 1:  # One tensor holds all experts, packed as the decoder's.
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
    kv, d_ff = shape.n_kv_heads * shape.head_dim, shape.d_ff
    rows = dict(
        zip([*attention, "mlp.gate_proj", "mlp.up_proj"], [0, kv, kv, d_ff, d_ff], strict=True)
    )
    rows[attention[0]] = shape.n_heads * shape.head_dim
    for layer in range(shape.n_layers):
        for name, theirs in packed.items():
            parts = [state[f"model.layers.{layer}.{each}"] for each in theirs]
            if len(parts) > 1:
                for each, part in zip(theirs, parts, strict=True):
                    sizes = (
                        rows[each.rpartition(".")[0]],
                        *([shape.d_model] if part.dim() > 1 else []),
                    )
                    _expect_sizes(f"model.layers.{layer}.{each}", part, sizes)
            ours[f"blocks.{layer}.{name}"] = torch.cat(parts) if len(parts) > 1 else parts[0]
    return ours


def _expect_sizes(name: str, part: Tensor, sizes: tuple[int, ...]) -> None:
    """Before parts are stacked, where only the sum of their rows would be seen."""
    if tuple(part.shape) != sizes:
        raise PeakwardError(
            f"expected {name} of {sizes}, as the model's configuration says, got {tuple(part.shape)}: the "
            "weights are another model's"
        )
