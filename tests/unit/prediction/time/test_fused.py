"""Times of Inductor's kernels: by hand on a device of round rates, and as traced on an H200."""

from statistics import median

import pytest

from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time.device_model import DeviceModel, TrafficCurve
from peakward.prediction.time.special_operators import fused_s
from peakward.prediction.time.step import step_time
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.op_graph import Operand, Operator

from .measured_h200 import calibrated, compiled_steps, study

SLOW = DeviceModel(
    name="a gigabyte a second",
    source="calibrated",
    compute_capability=(9, 0),
    n_sms=132,
    products={},
    attention={},
    traffic=TrafficCurve.stated(1e9, 1e-6),
    call_s=5e-6,
)
"""With 132 multiprocessors every other bound of a kernel is far below its bytes'."""


def tensor(*shape, dtype="float32"):
    return Operand(shape=shape, dtype=dtype)


def operator(kind, fused, inputs, outputs, phase="forward"):
    return Operator(
        name=f"inductor.{kind}",
        phase=phase,
        module="blocks.*",
        inputs=inputs,
        outputs=outputs,
        flops=0,
        bytes_read=sum(each.n_bytes for each in inputs),
        bytes_written=sum(each.n_bytes for each in outputs),
        fused=tuple(f"aten.{each}" for each in fused),
    )


ROW, LONG_ROW, PARTS = tensor(250, 1000), tensor(50, 5000), tensor(250, 1000)
HEADS, SIDE_BY_SIDE = tensor(5, 2, 25, 1000), tensor(5, 25, 2000)


@pytest.mark.parametrize(
    ("made", "factor"),
    [
        (operator("pointwise", ["add"], (ROW,), (ROW,)), 1.0),
        (operator("pointwise", ["clone"], (HEADS,), (SIDE_BY_SIDE,)), 1.0),
        (operator("pointwise", ["clone"], (HEADS,), (SIDE_BY_SIDE,), "backward"), 1.4),
        (operator("inner_reduction", ["_fused_rms_norm"], (ROW,), (ROW,)), 1.15),
        (operator("inner_reduction", ["_fused_rms_norm"], (LONG_ROW,), (LONG_ROW,)), 1.45),
        (operator("outer_reduction", ["_fused_rms_norm_backward"], (ROW, ROW), ()), 2.5),
        (operator("mixed_reduction", ["_fused_rms_norm_backward"], (HEADS,), (PARTS,)), 1.8),
    ],
)
def test_factors_over_a_plain_addition(made, factor):
    """Of 2 MB each: 2 ms and a launch."""
    moved = made.bytes_read + made.bytes_written
    assert moved in (2_000_000, 2_002_000)
    assert fused_s(made, SLOW) == pytest.approx(factor * (moved / 1e9 + 1e-6))


def test_the_last_step_of_a_sum_across_rows_costs_a_start():
    last = operator("outer_reduction", ["_fused_rms_norm_backward"], (tensor(16, 768),), ())
    assert fused_s(last, SLOW) == pytest.approx(2.5 * (16 * 768 * 4e-9 + 1e-6) + 1.4e-6)


def test_joined_parts_are_bound_by_their_elements():
    """On a device with no end of bandwidth: 360 · 10⁹ a second and a launch."""
    fast = SLOW._replace(traffic=TrafficCurve.stated(1e15, 1e-6))
    turned = operator(
        "pointwise", ["add", "cat", "mul"], (tensor(360_000_000),) * 2, (tensor(360_000_000),)
    )
    assert fused_s(turned, fast) == pytest.approx(1e-3 + 1e-6)


@pytest.mark.parametrize(("row", "bound_s"), [(1024, 0.0), (2048, 1e-3)])
def test_a_softmax_that_loops_over_its_rows_is_bound_by_its_exponentials(row, bound_s):
    """370 · 10⁶ scores at 370 · 10⁹ a second."""
    fast = SLOW._replace(traffic=TrafficCurve.stated(1e15, 1e-6))
    scores = tensor(370_000_000 // row, row)
    made = operator("inner_reduction", ["add", "_softmax"], (scores,), (scores,))
    assert fused_s(made, fast) == pytest.approx(bound_s + 1e-6, rel=0.01, abs=1e-5)


def test_more_multiprocessors_join_faster():
    fast = SLOW._replace(traffic=TrafficCurve.stated(1e15, 1e-6))
    turned = operator(
        "pointwise", ["add", "cat", "mul"], (tensor(10_000_000),), (tensor(10_000_000),)
    )
    assert fused_s(turned, fast) > 1.8 * fused_s(turned, fast._replace(n_sms=264))


GAP_S = 0.9e-6
"""From one kernel's end to the next one's start, in the replayed graphs of the profiles."""


@pytest.mark.parametrize("name", ["small", "2.7B"])
def test_traced_kernels_take_about_as_long(name):
    """All of Inductor's together: 0.9 to 1.1 of what ran."""
    profiled = next(
        p for p in study(f"run-{name}").profiles if p.case.configuration.compile != "none"
    )
    kernels = [each for each in profiled.profile.kernels if each.name.startswith("triton_")]
    ran_s = (
        sum(each.total_ns * 1e-9 + each.n * GAP_S for each in kernels) / profiled.profile.n_steps
    )
    case = ModelCase(
        model=model(name),
        workload=Workload(batch_size=4, seq_len=512),
        configuration=Configuration(precision="bf16", attention="sdpa", compile="default"),
        device="cuda",
    )
    groups = [each for each in op_graph(case).operators if each.fused]
    assert sum(each.count * fused_s(each, calibrated()) for each in groups) == pytest.approx(
        ran_s, rel=0.1
    )


def test_a_prediction_tells_kernels_apart_by_what_they_fuse():
    case = next(iter(compiled_steps()))
    rows = [each for each in step_time(case, calibrated()).operators if each.fused]
    assert len({(each.phase, each.module, each.name, each.fused) for each in rows}) == len(rows)
    n_calls = sum(each.count for each in op_graph(case).operators if each.fused)
    assert sum(each.n_calls for each in rows) == n_calls


def test_compiled_steps_that_the_device_bounds():
    found = {case: step_time(case, calibrated()) for case in compiled_steps()}
    errors = sorted(
        abs(found[case].step_s.estimate / measured_s - 1)
        for case, measured_s in compiled_steps().items()
        if found[case].bound == "device"
    )
    assert len(errors) >= 49
    assert median(errors) < 0.03
    assert errors[int(0.9 * len(errors))] < 0.08
    assert errors[-1] < 0.12
