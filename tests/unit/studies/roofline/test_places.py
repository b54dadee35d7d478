"""Places computed from a graph and from made-up profiles, and from what an H200 did."""

import msgspec
import pytest

from peakward.hardware import devices
from peakward.prediction.ceilings import ceilings
from peakward.prediction.floor import compute_type
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.planning.site import site
from peakward.records.codec import from_json
from peakward.records.study import Study
from peakward.studies.cases import model_case
from peakward.studies.roofline.places import places
from peakward.studies.scope import micro
from stored_results import index

CASE = model_case(micro(), 2, 64, "train_step", "cuda")
RECORDED = "2026-11-21-h200-run-small"


@pytest.fixture
def on(roofed):
    return ceilings("fp32", roofed(), None)


def test_each_kind_is_as_far_below_its_roof_as_it_was_made(traced, on):
    found = places(CASE, op_graph(CASE), on, traced(CASE), None)
    shares = {each.kind: each.roof_share for each in found}
    for layer in ("qkv", "out", "up", "down", "head", "attention products"):
        assert shares.pop(layer) == pytest.approx(1 / 2, rel=1e-3)
    assert list(shares.values()) == pytest.approx([1 / 4] * len(shares), rel=1e-2)


def test_sums_are_those_of_the_graph(traced, on):
    graph = op_graph(CASE)
    found = places(CASE, graph, on, traced(CASE), None)
    assert sum(each.n_calls for each in found) == sum(each.count for each in graph.operators)
    moved = sum(each.count * (each.bytes_read + each.bytes_written) for each in graph.operators)
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
