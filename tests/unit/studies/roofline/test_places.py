"""Kinds, operations and places of operators: by hand, of made-up profiles, and of what an H200 did."""

import msgspec
import pytest

from peakward.hardware import devices
from peakward.prediction.floor import ceilings, compute_type
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.planning.site import site
from peakward.records.codec import from_json
from peakward.records.profile import OperatorRate
from peakward.records.study import Study
from peakward.studies.cases import model_case
from peakward.studies.roofline.places import (
    ELEMENTWISE,
    OPTIMISER,
    Product,
    fills_s,
    kind,
    operations,
    places,
    roles,
    traced_kind,
    traced_product,
)
from peakward.studies.scope import micro
from stored_results import index

CASE = model_case(micro(), 2, 64, "train_step", "cuda")
TOKENS, D = 2 * 64, 128
FLASH = {"attention": "sdpa-flash", "precision": "bf16-mixed"}
RECORDED = "2026-11-21-h200-run-small"


def graph(shape=None, **configuration):
    return op_graph(model_case(shape or micro(), 2, 64, "train_step", "cuda", **configuration))


def kinds(found):
    role_of = roles(found)
    return {kind(each, role_of) for each in found.operators}


def first(found, name):
    return next(each for each in found.operators if each.name == name)


def rate(name, dims):
    bare = dict.fromkeys(OperatorRate.__struct_fields__)
    return OperatorRate(**bare | {"name": name, "dims": dims, "n": 1, "kernel_ns": 1})


@pytest.fixture
def on(roofed):
    return ceilings("fp32", roofed(), None)


def test_a_product_has_its_flops():
    assert operations(first(graph(), "aten.mm")) == 2 * TOKENS * D * 3 * D


def test_an_elementwise_operator_has_one_for_each_element_and_step():
    found = graph()
    assert operations(first(found, "aten.silu")) == 4 * TOKENS * 512
    scores = 2 * 4 * 64 * 64
    assert operations(first(found, "aten._softmax")) == 5 * scores


def test_a_reduction_counts_what_it_reads():
    found = first(graph(), "aten.embedding_dense_backward")
    assert operations(found) == 0
    loss = first(graph(), "aten.nll_loss_forward")
    assert operations(loss) == TOKENS * 1000


def test_what_moves_computes_nothing():
    assert operations(first(graph(), "aten.embedding")) == 0
    assert operations(first(graph(precision="bf16-mixed"), "aten._to_copy")) == 0


def test_fused_attention_counts_what_the_maths_needs():
    found = graph(**FLASH)
    forward = first(found, "aten._scaled_dot_product_flash_attention")
    backward = first(found, "aten._scaled_dot_product_flash_attention_backward")
    one_product = 2 * (2 * 4) * 64 * 64 * 32
    assert operations(forward) == 2 * one_product / 2
    assert operations(backward) == pytest.approx(4 * one_product / 2)


def test_a_fused_kernel_computes_what_it_names():
    found = graph(**FLASH, compile="default")
    swiglu = next(each for each in found.operators if each.fused == ("aten.mul", "aten.silu"))
    assert operations(swiglu) == (1 + 4) * max(each.n_elements for each in swiglu.inputs)


def test_an_optimiser_over_lists_counts_every_parameter():
    found = first(graph(), "aten._foreach_addcdiv_")
    assert operations(found) == 3 * sum(each.n_elements for each in found.outputs)


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
    found = kinds(graph(**FLASH))
    assert "attention" in found
    assert "attention products" not in found


def test_a_compiled_kernel_is_of_the_kind_of_what_shapes_it():
    compiled = kinds(graph(**FLASH, compile="default"))
    assert compiled == kinds(graph(**FLASH))


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


def changed(told, change):
    operators = tuple(change(each) for each in told.profile.operators)
    return msgspec.structs.replace(
        told, profile=msgspec.structs.replace(told.profile, operators=operators)
    )


def test_a_fill_is_told_by_the_shape_of_the_result_around_it(traced):
    told = traced(CASE)
    found = fills_s(told, op_graph(CASE))
    fills = {
        each.dims: each.kernel_ns * 1e-9 / 3
        for each in told.profile.operators
        if each.name == "aten::fill_"
    }
    assert set(fills) == {"128×1000", "1000×128"}
    assert found == {"loss": fills["128×1000"], "embedding": fills["1000×128"]}


def test_other_fills_than_the_graph_s_tell_nothing(traced, on):
    told = traced(CASE)

    def twice(each):
        is_loss = each.name == "aten::fill_" and each.dims == "128×1000"
        return msgspec.structs.replace(each, n=2 * each.n) if is_loss else each

    odd = changed(told, twice)
    assert fills_s(odd, op_graph(CASE))["loss"] is None
    found = {each.kind: each for each in places(CASE, op_graph(CASE), on, odd, None)}
    assert found["loss"].measured_s is None
    assert found["embedding"].measured_s is not None


def test_a_fill_moves_from_elementwise_to_the_operator_around_it(traced, on):
    told = traced(CASE)
    moved = fills_s(told, op_graph(CASE))
    copies = {"copy", "elementwise", "reduction", "memory"}
    told_s = {
        "loss": sum(each.total_ns for each in told.profile.categories if each.category == "loss"),
        ELEMENTWISE: sum(
            each.total_ns
            for each in told.profile.categories
            if each.category in copies and each.phase != "optimizer"
        ),
    }
    found = {each.kind: each.measured_s for each in places(CASE, op_graph(CASE), on, told, None)}
    assert found["loss"] == pytest.approx(told_s["loss"] * 1e-9 / 3 + moved["loss"])
    assert found[ELEMENTWISE] == pytest.approx(told_s[ELEMENTWISE] * 1e-9 / 3 - sum(moved.values()))


def test_each_kind_is_as_far_below_its_roof_as_it_was_made(traced, on):
    found = places(CASE, op_graph(CASE), on, traced(CASE), None)
    shares = {each.kind: each.roof_share for each in found}
    for layer in ("qkv", "out", "up", "down", "head", "attention products"):
        assert shares.pop(layer) == pytest.approx(1 / 2, rel=1e-3)
    assert list(shares.values()) == pytest.approx([1 / 4] * len(shares), rel=1e-2)


def test_sums_are_those_of_the_graph(traced, on):
    stated = op_graph(CASE)
    found = places(CASE, stated, on, traced(CASE), None)
    assert sum(each.n_calls for each in found) == sum(each.count for each in stated.operators)
    moved = sum(each.count * (each.bytes_read + each.bytes_written) for each in stated.operators)
    assert sum(each.bytes for each in found) == moved
    up = next(each for each in found if each.kind == "up")
    assert up.operations == 3 * 8 * 2 * 128 * 128 * 1024
    assert up.rate == pytest.approx(up.operations / up.measured_s)
    assert up.is_layer
    assert not next(each for each in found if each.kind == "attention products").is_layer


def test_without_a_profile_there_is_a_place_but_no_time(on):
    found = places(CASE, op_graph(CASE), on, None, None)
    assert {(each.measured_s, each.rate, each.roof_share) for each in found} == {(None,) * 3}
    assert all(each.floor_s for each in found)
    assert {each.bound for each in found} == {"memory"}, "at 128 tokens all is left of 50"


def test_products_with_other_calls_than_the_graph_have_no_time(traced, on):
    told = traced(CASE)
    fewer = tuple(
        msgspec.structs.replace(each, n=each.n - 1) if each.dims == "128×128, 128×384" else each
        for each in told.profile.operators
    )
    changed = msgspec.structs.replace(
        told, profile=msgspec.structs.replace(told.profile, operators=fewer)
    )
    found = {each.kind: each for each in places(CASE, op_graph(CASE), on, changed, None)}
    assert found["qkv"].measured_s is None
    assert found["up"].measured_s is not None


def test_without_a_matmul_rate_there_is_no_least_time(traced, on):
    unknown = on._replace(matmul_flops_per_s=None)
    found = {each.kind: each for each in places(CASE, op_graph(CASE), unknown, None, None)}
    assert (found["up"].floor_s, found["up"].bound) == (None, None)
    assert found["embedding"].floor_s


@pytest.fixture(scope="module")
def recorded():
    """The baseline and the best of a run on an H200, with places."""
    study = from_json(index()[RECORDED].read(), Study)
    where = study.environment
    device = devices.match(where.device_name, where.device_memory_bytes)
    model = site(device, calibration=study.calibration).model
    return [
        (
            each,
            places(
                each.case,
                op_graph(each.case),
                ceilings(compute_type(each.case), study.calibration, device),
                each,
                model,
            ),
        )
        for each in study.profiles
    ]


def test_all_that_an_h200_did_has_a_place_eager_and_compiled(recorded):
    for profile, found in recorded:
        whole_ns = sum(each.total_ns for each in profile.profile.categories) / profile.n_steps
        placed_s = sum(each.measured_s for each in found)
        assert placed_s * 1e9 == pytest.approx(whole_ns)


def test_an_h200_stayed_under_its_roof_and_near_what_was_predicted(recorded):
    for _, found in recorded:
        assert all(0 < each.roof_share <= 1 for each in found)
        measured_s = sum(each.measured_s for each in found)
        assert measured_s == pytest.approx(sum(each.predicted_s for each in found), rel=0.1)


def test_bf16_and_fusion_move_operators_on_an_h200(recorded):
    (_, before), (_, after) = recorded
    fp32, bf16 = ({each.kind: each for each in found} for found in (before, after))
    assert bf16["up"].intensity == pytest.approx(2 * fp32["up"].intensity)
    assert bf16["elementwise and copies"].bytes < fp32["elementwise and copies"].bytes / 5
