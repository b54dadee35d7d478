"""The floating-point operations of a dispatched operator, from the shapes of its arguments.

Each multiply-add of a matrix product counts as two, and all else as nothing, as in torch's
FlopCounterMode. Its registry leaves out torch's fused attention on a CPU and grouped products, and
before torch 2.12 refuses heads that share keys and values. A mask does not reduce the count here.
"""

import math
from collections.abc import Callable

from torch import Tensor
from torch.utils.flop_counter import flop_registry

Shapes = list[tuple[int, ...]]


def flops(name: str, tensors: list[Tensor]) -> int:
    """The FLOPs of the operator of this name ("aten.mm") on its tensor arguments, given in order."""
    formula = _FORMULAS.get(name)
    return 0 if formula is None else formula([tuple(each.shape) for each in tensors])


def _product(first: int) -> Callable[[Shapes], int]:
    """The FLOPs of [..., m, k] at `first` times [..., k, n] after it."""

    def formula(shapes: Shapes) -> int:
        return 2 * math.prod(shapes[first]) * shapes[first + 1][-1]

    return formula


def _grouped_product(shapes: Shapes) -> int:
    """The FLOPs of (…, m, k) times (…, k, n), where either or both may have no dimension of groups. The
    groups are then cut from the rows of the first, the columns of the second, or k of both, and each
    element is in one group. Without such a cut every group multiplies whole matrices."""
    a, b = shapes[:2]
    whole = len(a) == len(b) == 3
    return 2 * (a[0] if whole else 1) * a[-2] * a[-1] * b[-1]


def _attention(query: int, n_key_products: int, n_value_products: int) -> Callable[[Shapes], int]:
    """The FLOPs of attention: query [batch, heads, s, d] at `query`, then key [.., t, d] and value [..,
    t, dv]; `n_key_products` as large as the scores' (along d), and `n_value_products` as large as the
    weighted values' (along dv)."""

    def formula(shapes: Shapes) -> int:
        batch, heads, n_queries, size = shapes[query]
        n_keys, value_size = shapes[query + 2][2:]
        width = n_key_products * size + n_value_products * value_size
        return 2 * batch * heads * n_queries * n_keys * width

    return formula


def _own_attention_backward(shapes: Shapes) -> int:
    """The FLOPs of our attention's backward pass; the gradient of the log-sum-exp, if any, comes before
    the query."""
    query = next(i for i, shape in enumerate(shapes) if i and len(shape) == 4)
    return _attention(query, 3, 2)(shapes)


def _linear_cross_entropy(n_products: int) -> Callable[[Shapes], int]:
    """The FLOPs of `n_products` products of (tokens, d) and (vocab, d), or as large ones."""

    def formula(shapes: Shapes) -> int:
        (n_tokens, width), (vocab, _) = shapes[:2]
        return n_products * 2 * n_tokens * width * vocab

    return formula


def _slope_product(shapes: Shapes) -> int:
    """The FLOPs of (tokens, d) with the gradient of the logits, which is the third argument."""
    (n_tokens, width), _, (_, columns) = shapes[:3]
    return 2 * n_tokens * width * columns


def _quantised_product(shapes: Shapes) -> int:
    """The FLOPs of (…, k) with n outputs; the scales are (groups, n)."""
    x, _, scale = shapes[:3]
    return 2 * math.prod(x) * scale[-1]


_FUSED = (
    "flash_attention_for_cpu",
    "flash_attention",
    "efficient_attention",
    "cudnn_attention",
)
_FORMULAS: dict[str, Callable[[Shapes], int]] = {
    "aten.mm": _product(0),
    "aten.bmm": _product(0),
    "aten._scaled_mm": _product(0),
    "aten._grouped_mm": _grouped_product,
    "aten.addmm": _product(1),
    "aten.baddbmm": _product(1),
    **{f"aten._scaled_dot_product_{kind}": _attention(0, 1, 1) for kind in _FUSED},
    # Five products: the scores again, and the gradients of the query, the key, the weights and the value.
    **{f"aten._scaled_dot_product_{kind}_backward": _attention(1, 3, 2) for kind in _FUSED},
    "peakward.decode_attention": _attention(0, 1, 1),
    "peakward.flash_attention": _attention(0, 1, 1),
    "peakward.flash_attention_backward": _own_attention_backward,
    "peakward.int4_matmul": _quantised_product,
    "peakward.int8_matmul": _quantised_product,
    "peakward.linear_cross_entropy_chunked": _linear_cross_entropy(3),
    "peakward.linear_cross_entropy_whole": _linear_cross_entropy(2),
    "peakward.linear_cross_entropy_whole_backward": _slope_product,
    "peakward.linear_cross_entropy_recomputed": _linear_cross_entropy(1),
    "peakward.linear_cross_entropy_recomputed_backward": _linear_cross_entropy(3),
}

_ARITHMETIC = frozenset(
    {
        *(str(each) for each in flop_registry),
        *(
            "aten._scaled_grouped_mm",
            "aten._int_mm",
            "aten._weight_int8pack_mm",
        ),
        *("aten.mkldnn_rnn_layer", "aten._thnn_fused_lstm_cell", "aten._thnn_fused_gru_cell"),
        *("aten._trilinear", "aten.linear", "aten.mv", "aten.dot", "aten.addmv", "aten.addbmm"),
    }
)
"""All operators of matrix products and convolutions: those that torch counts, and those that it omits."""


def is_uncounted(name: str) -> bool:
    """Whether the operator is known to compute an unknown amount."""
    return name in _ARITHMETIC and name not in _FORMULAS
