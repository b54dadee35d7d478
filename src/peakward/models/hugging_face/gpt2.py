"""GPT-2 and StarCoder: LayerNorm, learned positions, a plain feed-forward network, biases.

Names and defaults are those of transformers' configuration classes (5.23).
"""

from collections.abc import Iterator

import msgspec

from peakward.models.hugging_face.fields import (
    Heads,
    InnerWidth,
    Layers,
    Positions,
    Positive,
    Vocabulary,
    Width,
    activation,
)
from peakward.models.presets import derived_head_dim
from peakward.records.model_shape import ModelShape

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
