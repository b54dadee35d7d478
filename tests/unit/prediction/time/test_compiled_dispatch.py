"""What the host needs for a compiled step, by hand and as measured on an H200's host."""

from statistics import median

import pytest

from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time import dispatch
from peakward.prediction.time.compiled_dispatch import CALL, LAUNCH, calls
from peakward.prediction.time.step import step_time
from peakward.records.case import Configuration, ModelCase, Workload

from .measured_h200 import calibrated, compiled_steps


def case(pass_="train_step", **workload):
    return ModelCase(
        model=model("small"),
        workload=Workload(**{"batch_size": 4, "seq_len": 512, "pass_": pass_, **workload}),
        configuration=Configuration(precision="bf16", attention="sdpa", compile="default"),
        device="cuda",
    )


def units(made, phase):
    return calls(made, op_graph(made), phase)


def test_a_forward_pass_by_hand():
    """11 kernels of each of 12 blocks, 2 of the readout; 11 operators look the ids up and make
    cosines and sines."""
    expected = LAUNCH * (12 * 11 + 2) + 13 * CALL["forward"] + dispatch.OPERATOR * 11
    assert units(case("forward"), "forward") == pytest.approx(expected)


def test_micro_batches_are_called_one_after_another():
    twice = units(case(accumulate=2), "forward")
    assert twice == pytest.approx(2 * units(case(), "forward"))


def test_gradients_of_further_micro_batches_are_added_by_eager_code():
    """To each of 12 · 6 + 3 parameters, and to the loss."""
    once, twice = units(case(), "backward"), units(case(accumulate=2), "backward")
    assert twice == pytest.approx(2 * once + dispatch.OPERATOR * (12 * 6 + 3 + 1))


def test_the_optimizer_is_eager():
    made = case()
    assert units(made, "optimizer") == dispatch.calls(made, op_graph(made), "optimizer")


def test_compiled_steps_that_the_host_bounds():
    """Whose times vary from run to run by more than this."""
    found = {made: step_time(made, calibrated()) for made in compiled_steps()}
    errors = [
        abs(found[made].step_s.estimate / measured_s - 1)
        for made, measured_s in compiled_steps().items()
        if found[made].bound == "host"
    ]
    assert len(errors) >= 14
    assert median(errors) < 0.06
    assert max(errors) < 0.45
