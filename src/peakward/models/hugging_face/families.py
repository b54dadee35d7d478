"""Hugging Face's model families: Llama and those that vary its block, GPT-2 and StarCoder.

Names and defaults are those of transformers' configuration classes (5.23). A `config.json` holds only
what differs from them.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from peakward.models.presets import LARGEST, derived_head_dim
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import Activation, ModelShape

Vocabulary = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["vocab_size"])]
Positions = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["max_seq_len"])]
Layers = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["n_layers"])]
Width = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["d_model"])]
InnerWidth = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["d_ff"])]
HeadWidth = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["head_dim"])]
Heads = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["n_heads"])]
Experts = Annotated[int, msgspec.Meta(ge=1, le=LARGEST["n_experts"])]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e30)]
ITSELF = (
    "take the module itself, which has steps without a cache: --model hf:…, pw.predict or "
    "pw.measure_step"
)
"""The advice where no shape has a model."""
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
}
"""The activations of `ModelShape`, by their `ACT2FN` key in transformers."""


def activation(name: str) -> Activation:
    """The activation of that `ACT2FN` key.

    Raises:
        PeakwardError: No shape has it.
    """
    if name not in ACTIVATIONS:
        raise PeakwardError(
            f"expected an activation of {', '.join(ACTIVATIONS)}, got {name[:40]!r}, "
            f"which no model shape has: {ITSELF}"
        )
    return ACTIVATIONS[name]


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the rotation that a shape has. Its scaling changes the angles of long contexts, and
    no cost."""

    rope_theta: Positive | None = None
    partial_rotary_factor: Positive | None = None


class Rotary(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that the families share. Before transformers 5, `rope_theta` stood beside
    `rope_scaling`; since then, both are in `rope_parameters`."""

    vocab_size: Vocabulary = 32_000
    hidden_size: Width = 4096
    intermediate_size: InnerWidth
    num_hidden_layers: Layers = 32
    num_attention_heads: Heads = 32
    num_key_value_heads: Heads | None = None
    head_dim: HeadWidth | None = None
    hidden_act: str = "silu"
    max_position_embeddings: Positions
    rms_norm_eps: Positive = 1e-6
    tie_word_embeddings: bool = False
    rope_theta: Positive = 10_000.0
    rope_scaling: Rope | None = None
    rope_parameters: Rope | None = None
    partial_rotary_factor: Positive | None = None
    sliding_window: Positions | None = None
    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...] | None = None

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        """Whether there are biases: on queries, keys and values; on attention's output; in the
        feed-forward network."""
        return False, False, False

    @property
    def window(self) -> int | None:
        """The number of tokens that each token attends to, itself included; None means all before it."""
        return self.sliding_window

    @property
    def _rope(self) -> Rope:
        return self.rope_scaling or self.rope_parameters or Rope()

    def beyond(self) -> Iterator[str]:
        """The settings that no shape can express."""
        rotated = self._rope.partial_rotary_factor or self.partial_rotary_factor or 1.0
        if rotated != 1.0:
            yield f"partial rotation (partial_rotary_factor {rotated:g})"
        if len(set(self.layer_types or ())) > 1:
            yield "full and windowed layers mixed (layer_types)"
        _, out, inner = self.biases
        if out != inner:
            yield (
                "attention biases without feed-forward biases, or the reverse "
                f"(attention_bias {str(out).lower()}, mlp_bias {str(inner).lower()})"
            )

    def shape(self, name: str) -> ModelShape:
        """The shape that the configuration describes, under that name."""
        heads, (qkv_bias, bias, _) = self.num_attention_heads, self.biases
        return ModelShape(
            name=name,
            vocab_size=self.vocab_size,
            n_layers=self.num_hidden_layers,
            d_model=self.hidden_size,
            d_ff=self.intermediate_size,
            n_heads=heads,
            n_kv_heads=self.num_key_value_heads or heads,
            head_dim=self.head_dim or derived_head_dim(self.hidden_size, heads),
            max_seq_len=self.max_position_embeddings,
            norm_eps=self.rms_norm_eps,
            activation=activation(self.hidden_act),
            rope_theta=self._rope.rope_theta or self.rope_theta,
            window=self.window,
            tied_head=self.tie_word_embeddings,
            qkv_bias=qkv_bias,
            bias=bias,
        )


class Llama(Rotary, frozen=True, kw_only=True):
    """Llama 1 to 3, and many models with the same layout."""

    intermediate_size: InnerWidth = 11_008
    max_position_embeddings: Positions = 2048
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        return self.attention_bias, self.attention_bias, self.mlp_bias

    @property
    def window(self) -> int | None:
        """None, because transformers' Llama does not read `sliding_window`."""
        return None


class Mistral(Rotary, frozen=True, kw_only=True):
    """Mistral: Llama's block with a window, unless `sliding_window` is null. With `layer_types` transformers
    reads it as Ministral, whose layers have the window where these say so."""

    intermediate_size: InnerWidth = 14_336
    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 131_072
    sliding_window: Positions | None = 4096

    @property
    def window(self) -> int | None:
        return None if "full_attention" in (self.layer_types or ()) else self.sliding_window


class Mixtral(Rotary, frozen=True, kw_only=True):
    """Mistral's block with a mixture of experts."""

    intermediate_size: InnerWidth = 14_336
    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 131_072
    rms_norm_eps: Positive = 1e-5
    rope_theta: Positive = 1_000_000.0
    num_local_experts: Experts = 8
    num_experts_per_tok: Experts = 2
    output_router_logits: bool = False

    def beyond(self) -> Iterator[str]:
        yield from super().beyond()
        if self.num_local_experts == 1:
            yield "a router before one expert (num_local_experts 1)"
        if self.output_router_logits:
            yield "a loss on its router (output_router_logits true)"

    def shape(self, name: str) -> ModelShape:
        return msgspec.structs.replace(
            super().shape(name),
            n_experts=self.num_local_experts,
            n_active_experts=self.num_experts_per_tok,
        )


class Phi3(Rotary, frozen=True, kw_only=True):
    """Phi-3, and those of Phi-4 that rotate whole heads."""

    vocab_size: Vocabulary = 32_064
    hidden_size: Width = 3072
    intermediate_size: InnerWidth = 8192
    max_position_embeddings: Positions = 4096
    rms_norm_eps: Positive = 1e-5


class Qwen2(Rotary, frozen=True, kw_only=True):
    """Qwen2 and Qwen2.5: biases on queries, keys and values."""

    vocab_size: Vocabulary = 151_936
    intermediate_size: InnerWidth = 22_016
    num_key_value_heads: Heads | None = 32
    max_position_embeddings: Positions = 32_768
    use_sliding_window: bool = False
    sliding_window: Positions | None = 4096
    max_window_layers: Annotated[int, msgspec.Meta(ge=0)] = 28

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        return True, False, False

    @property
    def _full_layers(self) -> int:
        """The number of lowest layers that attend to all tokens; the layers above attend to a window."""
        if not self.use_sliding_window or self.sliding_window is None:
            return self.num_hidden_layers
        if self.layer_types is not None:
            return self.layer_types.count("full_attention")
        return min(self.max_window_layers, self.num_hidden_layers)

    @property
    def window(self) -> int | None:
        return self.sliding_window if self._full_layers == 0 else None

    def beyond(self) -> Iterator[str]:
        yield from super().beyond()
        if 0 < self._full_layers < self.num_hidden_layers:
            yield f"full and windowed layers mixed (max_window_layers {self.max_window_layers})"


class Starcoder2(Rotary, frozen=True, kw_only=True):
    """LayerNorm and a plain feed-forward network under RoPE."""

    vocab_size: Vocabulary = 49_152
    hidden_size: Width = 3072
    intermediate_size: InnerWidth = 12_288
    num_hidden_layers: Layers = 30
    num_attention_heads: Heads = 24
    num_key_value_heads: Heads | None = 2
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: Positions = 4096
    norm_epsilon: Positive = 1e-5
    use_bias: bool = True
    tie_word_embeddings: bool = True

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        return self.use_bias, self.use_bias, self.use_bias

    def shape(self, name: str) -> ModelShape:
        return msgspec.structs.replace(
            super().shape(name), norm="layernorm", norm_eps=self.norm_epsilon, gated=False
        )


ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
"""The second names of fields that transformers accepts (its `attribute_map`)."""


class Gpt2(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the configuration that a shape depends on."""

    vocab_size: Vocabulary = 50_257
    n_positions: Positions = 1024
    n_embd: Width = 768
    n_layer: Layers = 12
    n_head: Heads = 12
    n_inner: InnerWidth | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: Positive = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True

    @property
    def n_kv_heads(self) -> int:
        """The number of key heads: as many as query heads."""
        return self.n_head

    def beyond(self) -> Iterator[str]:
        """The settings that no shape can express."""
        if not self.scale_attn_weights:
            yield "unscaled attention (scale_attn_weights false)"
        if self.scale_attn_by_inverse_layer_idx:
            yield "attention scaled by layer (scale_attn_by_inverse_layer_idx true)"
        if self.add_cross_attention:
            yield "cross-attention (add_cross_attention true)"

    def shape(self, name: str) -> ModelShape:
        """The shape that the configuration describes, under that name."""
        return ModelShape(
            name=name,
            vocab_size=self.vocab_size,
            n_layers=self.n_layer,
            d_model=self.n_embd,
            d_ff=4 * self.n_embd if self.n_inner is None else self.n_inner,
            n_heads=self.n_head,
            n_kv_heads=self.n_kv_heads,
            head_dim=derived_head_dim(self.n_embd, self.n_head),
            max_seq_len=self.n_positions,
            norm="layernorm",
            norm_eps=self.layer_norm_epsilon,
            activation=activation(self.activation_function),
            gated=False,
            positions="learned",
            tied_head=self.tie_word_embeddings,
            qkv_bias=True,
            bias=True,
        )


class GptBigCode(Gpt2, frozen=True, kw_only=True):
    """StarCoder: GPT-2 with multi-query attention."""

    activation_function: str = "gelu_pytorch_tanh"
    multi_query: bool = True

    @property
    def n_kv_heads(self) -> int:
        """The number of key heads: one, or as many as query heads."""
        return 1 if self.multi_query else self.n_head
