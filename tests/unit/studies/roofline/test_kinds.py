"""Kinds of operators, from a graph and from a trace."""

import msgspec
import pytest

from peakward.prediction.operators.op_graph import op_graph
from peakward.records.profile import OperatorRate
from peakward.studies.cases import model_case
from peakward.studies.roofline.kinds import (
    ELEMENTWISE,
    OPTIMISER,
    Product,
    kind,
    roles,
    traced_kind,
    traced_product,
)
from peakward.studies.scope import micro


def graph(shape=None, **configuration):
    return op_graph(
        model_case(shape or micro(), 2, 64, "train_step", "cuda", **configuration),
    )


def kinds(found):
    role_of = roles(found)
    return {kind(each, role_of) for each in found.operators}


def rate(name, dims):
    bare = dict.fromkeys(OperatorRate.__struct_fields__)
    return OperatorRate(**bare | {"name": name, "dims": dims, "n": 1, "kernel_ns": 1})


def test_every_operator_of_an_eager_step_has_a_kind():
    assert kinds(graph()) == {
        "qkv",
        "attention products",
        "out",
        "up",
        "down",
        "head",
        "softmax",
        "normalisation",
        "loss",
        "embedding",
        ELEMENTWISE,
        OPTIMISER,
    }


def test_fused_attention_is_a_kind_and_leaves_no_products():
    found = kinds(graph(attention="sdpa-flash", precision="bf16-mixed"))
    assert "attention" in found
    assert "attention products" not in found


def test_a_compiled_kernel_is_of_the_kind_of_what_shapes_it():
    compiled = kinds(graph(attention="sdpa-flash", precision="bf16-mixed", compile="default"))
    assert compiled == kinds(graph(attention="sdpa-flash", precision="bf16-mixed"))


def test_a_layer_has_its_products_forward_and_backward():
    found = roles(graph())
    assert [key.name for key, role in found.items() if role == "qkv"] == ["mm"] * 3


def test_layers_of_one_shape_share_a_name():
    square = msgspec.structs.replace(micro(), d_ff=128)
    assert "out + down" in kinds(graph(square))
    assert {"out", "down"}.isdisjoint(kinds(graph(square)))


@pytest.mark.parametrize(
    ("name", "dims", "sides"),
    [
        ("aten::mm", "4×8, 8×2", ((4, 8), (8, 2))),
        ("aten::mm", "4×8, 8×2, 4×2", ((4, 8), (8, 2))),
        ("aten::bmm", "3×4×8, 3×8×2", ((3, 4, 8), (3, 8, 2))),
        ("aten::addmm", "2, 4×8, 8×2", ((4, 8), (8, 2))),
    ],
)
def test_a_traced_product_is_known_by_its_matrices(name, dims, sides):
    assert traced_product(rate(name, dims)) == Product(name.removeprefix("aten::"), *sides)


def test_what_is_no_product_or_has_no_shapes_is_none():
    assert traced_product(rate("aten::mul", "4×8, 4×8")) is None
    assert traced_product(rate("aten::mm", "")) is None
    assert traced_product(rate("aten::mm", "4×8")) is None


@pytest.mark.parametrize(
    ("category", "phase", "expected"),
    [
        ("softmax", "forward", "softmax"),
        ("copy", "backward", ELEMENTWISE),
        ("memory", "forward", ELEMENTWISE),
        ("sort", "backward", "embedding"),
        ("elementwise", "optimizer", OPTIMISER),
        ("matmul", "forward", None),
        ("framework", "optimizer", None),
        (None, "forward", None),
    ],
)
def test_a_traced_category_has_a_kind_by_its_phase(profile, category, phase, expected):
    case = model_case(micro(), 2, 64, "train_step", "cuda")
    (group, *_) = profile(case).profile.categories
    assert traced_kind(msgspec.structs.replace(group, category=category, phase=phase)) == expected
