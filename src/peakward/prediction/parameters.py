"""How many parameters a shape has, counted by closed formula.

The unit tests hold these to the published totals; a test beside the reference decoder holds them
to the instantiated modules.
"""

from peakward.records.model_shape import ModelShape


def n_parameters(shape: ModelShape) -> int:
    """All parameters, each counted once: a tied head adds none."""
    return embedding_parameters(shape) + layer_parameters(shape) + head_parameters(shape)


def n_active_parameters(shape: ModelShape) -> int:
    """Those that a token goes through: all but the experts that its router leaves out."""
    return n_parameters(shape) - shape.idle_parameters


def embedding_parameters(shape: ModelShape) -> int:
    """The tables that are looked up in: of tokens, and of positions where these are learned."""
    return (shape.vocab_size + n_position_rows(shape)) * shape.d_model


def n_position_rows(shape: ModelShape) -> int:
    """Rows of the learned position table; 0 where positions are computed."""
    return shape.max_seq_len if shape.positions == "learned" else 0


def head_parameters(shape: ModelShape) -> int:
    """The output head's own weights, which has no bias: 0 where it is the token table."""
    return 0 if shape.tied_head else shape.vocab_size * shape.d_model


def layer_parameters(shape: ModelShape) -> int:
    """Every block's matrices, biases and norms, and the last norm.

    A LayerNorm has a weight and a bias per channel whatever `bias` says, an RMSNorm a weight.
    """
    norm = shape.d_model * (2 if shape.norm == "layernorm" else 1)
    block = block_matmul_parameters(shape) + _block_biases(shape) + 2 * norm
    return shape.n_layers * block + norm


def block_matmul_parameters(shape: ModelShape) -> int:
    """One block's matrices: query, key, value and output projections, router, and all experts."""
    return _shared_matmul_parameters(shape) + shape.n_experts * shape.expert_parameters


def active_block_matmul_parameters(shape: ModelShape) -> int:
    """Elements of one block's matrices that one token is multiplied with."""
    return _shared_matmul_parameters(shape) + shape.n_active_experts * shape.expert_parameters


def _shared_matmul_parameters(shape: ModelShape) -> int:
    """Elements of one block that every token is multiplied with; the router has a row for each expert."""
    query = shape.n_heads * shape.head_dim
    key_value = 2 * shape.n_kv_heads * shape.head_dim
    router = shape.n_experts if shape.n_experts > 1 else 0
    return shape.d_model * (query + key_value + query + router)


def _block_biases(shape: ModelShape) -> int:
    biases = 0
    if shape.qkv_bias:
        biases += (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim
    if shape.bias:
        biases += shape.d_model  # attention's output projection
        biases += (2 if shape.gated else 1) * shape.d_ff + shape.d_model
    return biases
