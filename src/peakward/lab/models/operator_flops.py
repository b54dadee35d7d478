"""The floating-point operations of a dispatched operator, from the shapes of its arguments.

Two for each multiply-add of a matrix product, nothing for what is none: as torch's FlopCounterMode
counts, which its registry leaves out for torch's fused attention on a CPU and for grouped products,
and refuses for heads that share keys and values before torch 2.12. No mask spares anything here.
"""

import math
from collections.abc import Callable

from torch import Tensor
from torch.utils.flop_counter import flop_registry

Shapes = list[tuple[int, ...]]


def flops(name: str, tensors: list[Tensor]) -> int:
    """Of the operator of this name ("aten.mm") on its tensor arguments, in their order."""
    formula = _FORMULAS.get(name)
    return 0 if formula is None else formula([tuple(each.shape) for each in tensors])


def _product(first: int) -> Callable[[Shapes], int]:
    """Of [..., m, k] at `first` and [..., k, n] after it."""

    def formula(shapes: Shapes) -> int:
        return 2 * math.prod(shapes[first]) * shapes[first + 1][-1]

    return formula


def _grouped_product(shapes: Shapes) -> int:
    """Of (…, m, k) and (…, k, n), either or both without a dimension of groups, which are then cut
    from the rows of the first, the columns of the second, or k of both: each of these is in one
    group, and without such a cut every group multiplies whole matrices."""
    a, b = shapes[:2]
    whole = len(a) == len(b) == 3
    return 2 * (a[0] if whole else 1) * a[-2] * a[-1] * b[-1]


def _attention(query: int, n_key_products: int, n_value_products: int) -> Callable[[Shapes], int]:
    """Query [batch, heads, s, d] at `query`, then key [.., t, d] and value [.., t, dv]: products as
    large as the scores' (along d), and as large as the weighted values' (along dv)."""

    def formula(shapes: Shapes) -> int:
        batch, heads, n_queries, size = shapes[query]
        n_keys, value_size = shapes[query + 2][2:]
        width = n_key_products * size + n_value_products * value_size
        return 2 * batch * heads * n_queries * n_keys * width

    return formula


def _own_attention_backward(shapes: Shapes) -> int:
    """The gradient of the log-sum-exp comes before the query, where there is one."""
    query = next(i for i, shape in enumerate(shapes) if i and len(shape) == 4)
    return _attention(query, 3, 2)(shapes)


def _linear_cross_entropy(n_products: int) -> Callable[[Shapes], int]:
    """Of (tokens, d) and (vocab, d), or as large ones."""

    def formula(shapes: Shapes) -> int:
        (n_tokens, width), (vocab, _) = shapes[:2]
        return n_products * 2 * n_tokens * width * vocab

    return formula


def _slope_product(shapes: Shapes) -> int:
    """Of (tokens, d), and of the logits' gradient after the one of these."""
    (n_tokens, width), _, (_, columns) = shapes[:3]
    return 2 * n_tokens * width * columns


def _quantised_product(shapes: Shapes) -> int:
    """Of (…, k) and n outputs, each with scales: (groups, n)."""
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
    # The scores once more, then the gradients of the query, the key, the weights and the value.
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
"""Operators of matrix products and convolutions: those that torch counts, and those that it omits."""


def is_uncounted(name: str) -> bool:
    """Whether the operator is known to compute, and not how much."""
    return name in _ARITHMETIC and name not in _FORMULAS
