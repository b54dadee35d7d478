"""Operators by what they are for."""

import pytest

from peakward.traces.category_rules import Category
from peakward.traces.operator_category import operator_category

NAMES = {
    Category.MATMUL: "aten::mm aten::addmm aten::bmm aten::baddbmm aten::linear aten::matmul",
    Category.SOFTMAX: "aten::_softmax aten::softmax aten::_log_softmax_backward_data",
    Category.LOSS: "aten::nll_loss_forward aten::cross_entropy_loss",
    Category.NORMALISATION: "aten::native_layer_norm aten::rms_norm aten::_fused_rms_norm",
    Category.ATTENTION: "aten::_scaled_dot_product_flash_attention_for_cpu",
    Category.CONVOLUTION: "aten::mkldnn_convolution aten::conv2d",
    Category.EMBEDDING: "aten::embedding aten::embedding_dense_backward aten::index_select",
    Category.OPTIMIZER: "aten::_fused_adamw_ aten::_fused_sgd_",
    Category.REDUCTION: "aten::mean aten::sum aten::cumsum aten::argmax aten::linalg_vector_norm",
    Category.COPY: "aten::copy_ aten::_to_copy aten::clone aten::contiguous aten::cat aten::zero_",
    Category.ELEMENTWISE: "aten::rsqrt aten::mul_ aten::_foreach_add_ aten::silu aten::masked_fill_ "
    "aten::bitwise_not aten::ge aten::native_dropout",
    Category.FRAMEWORK: "aten::view aten::transpose aten::t aten::expand aten::as_strided "
    "aten::detach detach aten::empty_like aten::item aten::_local_scalar_dense MmBackward0 "
    "torch::autograd::AccumulateGrad torch::autograd::CopySlices",
    Category.COMMUNICATION: "c10d::allreduce_",
    Category.SORT: "aten::topk aten::sort",
    Category.OTHER: "CompiledFunction CompiledFunctionBackward mine::operator",
}


@pytest.mark.parametrize(
    ("name", "category"), [(name, kind) for kind, names in NAMES.items() for name in names.split()]
)
def test_an_operator_is_of_a_category(name, category):
    assert operator_category(name) == category


def test_a_node_of_autograd_is_the_frameworks():
    node = "autograd::engine::evaluate_function: MmBackward0"
    assert operator_category(node) == Category.FRAMEWORK
