"""The purpose of an operator: the categories by which a trace's operators are told apart."""

from typing import Literal

Category = Literal[
    "matmul",
    "attention",
    "softmax",
    "loss",
    "normalisation",
    "embedding",
    "optimizer",
    "reduction",
    "sort",
    "copy",
    "elementwise",
]
_CATEGORIES: dict[str, Category] = {
    "mm": "matmul",
    "addmm": "matmul",
    "bmm": "matmul",
    "_scaled_mm": "matmul",
    "_grouped_mm": "matmul",
    "_softmax": "softmax",
    "_safe_softmax": "softmax",
    "_softmax_backward_data": "softmax",
    "_log_softmax": "softmax",
    "_log_softmax_backward_data": "softmax",
    "nll_loss_forward": "loss",
    "nll_loss_backward": "loss",
    "_fused_rms_norm": "normalisation",
    "_fused_rms_norm_backward": "normalisation",
    "native_layer_norm": "normalisation",
    "native_layer_norm_backward": "normalisation",
    "embedding": "embedding",
    "embedding_dense_backward": "embedding",
    "index_add": "embedding",
    "index_select": "embedding",
    "scatter": "embedding",
    "searchsorted": "sort",
    "sort": "sort",
    "topk": "sort",
    "_fused_adamw_": "optimizer",
    "peakward.adamw": "optimizer",
    "peakward.add_layer_norm": "normalisation",
    "peakward.add_layer_norm_backward": "normalisation",
    "peakward.add_rms_norm": "normalisation",
    "peakward.add_rms_norm_backward": "normalisation",
    "peakward.cross_entropy_backward_over_logits": "loss",
    "peakward.cross_entropy_over_logits": "loss",
    "peakward.decode_attention": "attention",
    "peakward.flash_attention": "attention",
    "peakward.flash_attention_backward": "attention",
    "peakward.int4_matmul": "matmul",
    "peakward.int8_matmul": "matmul",
    "peakward.linear_cross_entropy_chunked": "loss",
    "peakward.linear_cross_entropy_chunked_backward": "loss",
    "peakward.linear_cross_entropy_recomputed": "loss",
    "peakward.linear_cross_entropy_recomputed_backward": "loss",
    "peakward.linear_cross_entropy_whole": "loss",
    "peakward.linear_cross_entropy_whole_backward": "loss",
    "amax": "reduction",
    "inductor.inner_reduction": "reduction",
    "inductor.outer_reduction": "reduction",
    "mean": "reduction",
    "sum": "reduction",
    "_to_copy": "copy",
    "cat": "copy",
    "clone": "copy",
    "constant_pad_nd": "copy",
    "full": "copy",
    "new_zeros": "copy",
    "ones": "copy",
    "ones_like": "copy",
    "scalar_tensor": "copy",
    "slice_backward": "copy",
    "stack": "copy",
}


def category(name: str) -> Category:
    """The category of an operator of `op_graph` by its name ("aten.mm"); all that are not named are
    elementwise.

    A compiler's kernel has the category of its loop. An optimiser's `_foreach_` operators are
    elementwise too: its phase says whose they are.
    """
    own = name.removeprefix("aten.")
    if own.startswith("_scaled_dot_product_"):
        return "attention"
    return _CATEGORIES.get(own, "elementwise")
