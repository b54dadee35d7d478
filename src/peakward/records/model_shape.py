"""The shape of a decoder-only Transformer: everything but its weights."""

from typing import Literal

import msgspec

from peakward.records.result import Result

Norm = Literal["rmsnorm", "layernorm"]
Activation = Literal["silu", "gelu", "gelu-tanh", "relu"]
Positions = Literal["rope", "learned", "sinusoidal", "alibi"]


class ModelShape(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes and architecture choices. Two models with equal shapes cost the same."""

    name: str
    vocab_size: int
    n_layers: int
    d_model: int
    d_ff: int
    """Width inside a feed-forward network, or inside each expert where there are several."""
    n_heads: int
    n_kv_heads: int
    """Fewer than `n_heads` is grouped-query attention, 1 is multi-query attention."""
    head_dim: int
    max_seq_len: int
    """Rows of the learned position table; the longest sequence the model accepts."""
    norm: Norm = "rmsnorm"
    norm_eps: float = 1e-5
    activation: Activation = "silu"
    gated: bool = True
    """Three feed-forward matrices, act(x·W_gate) ⊙ (x·W_up) · W_down, instead of two."""
    n_experts: int = 1
    """Feed-forward networks of a block; 1 is a dense block, which has no router."""
    n_active_experts: int = 1
    """Feed-forward networks that the router chooses for each token."""
    positions: Positions = "rope"
    rope_theta: float = 10_000.0
    window: int | None = None
    """Each token attends to itself and the `window` - 1 tokens before it. None: to all before it."""
    tied_head: bool = False
    """The output head is the token embedding."""
    qkv_bias: bool = False
    bias: bool = False
    """Biases on every linear layer but the query, key, value projections and the head."""

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer."""
        return (self.window,) * self.n_layers

    @property
    def kept_elements(self) -> int:
        """The numbers in the keys and values of a token, in all layers."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim

    @property
    def expert_parameters(self) -> int:
        """The parameters in the matrices of one feed-forward network. A dense block has one."""
        return (3 if self.gated else 2) * self.d_model * self.d_ff

    @property
    def idle_parameters(self) -> int:
        """The parameters that one token does not use: in every block the experts not chosen for it."""
        return self.n_layers * (self.n_experts - self.n_active_experts) * self.expert_parameters
