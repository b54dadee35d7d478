"""Operations of operators, by hand."""

import pytest

from peakward.prediction.operators.op_graph import op_graph
from peakward.studies.cases import model_case
from peakward.studies.roofline.arithmetic import operations
from peakward.studies.scope import micro

TOKENS, D = 2 * 64, 128


def graph(**configuration):
    return op_graph(model_case(micro(), 2, 64, "train_step", "cuda", **configuration)).operators


def first(operators, name):
    return next(each for each in operators if each.name == name)


def test_a_product_has_its_flops():
    found = first(graph(), "aten.mm")
    assert operations(found) == 2 * TOKENS * D * 3 * D


def test_an_elementwise_operator_has_one_for_each_element_and_step():
    operators = graph()
    assert operations(first(operators, "aten.silu")) == 4 * TOKENS * 512
    scores = 2 * 4 * 64 * 64
    assert operations(first(operators, "aten._softmax")) == 5 * scores


def test_a_reduction_counts_what_it_reads():
    found = first(graph(), "aten.embedding_dense_backward")
    assert operations(found) == 0
    loss = first(graph(), "aten.nll_loss_forward")
    assert operations(loss) == TOKENS * 1000


def test_what_moves_computes_nothing():
    assert operations(first(graph(), "aten.embedding")) == 0
    assert operations(first(graph(precision="bf16-mixed"), "aten._to_copy")) == 0


def test_fused_attention_counts_what_the_maths_needs():
    operators = graph(attention="sdpa-flash", precision="bf16-mixed")
    forward = first(operators, "aten._scaled_dot_product_flash_attention")
    backward = first(operators, "aten._scaled_dot_product_flash_attention_backward")
    one_product = 2 * (2 * 4) * 64 * 64 * 32
    assert operations(forward) == 2 * one_product / 2
    assert operations(backward) == pytest.approx(4 * one_product / 2)


def test_a_fused_kernel_computes_what_it_names():
    operators = graph(attention="sdpa-flash", precision="bf16-mixed", compile="default")
    swiglu = next(each for each in operators if each.fused == ("aten.mul", "aten.silu"))
    assert operations(swiglu) == (1 + 4) * max(each.n_elements for each in swiglu.inputs)


def test_an_optimiser_over_lists_counts_every_parameter():
    found = first(graph(), "aten._foreach_addcdiv_")
    assert operations(found) == 3 * sum(each.n_elements for each in found.outputs)
