"""A captured step: who issues it, and the steps that were measured while an H200 was tuned."""

from statistics import median

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time import dispatch
from peakward.prediction.time.captured_dispatch import REPLAY, calls
from peakward.prediction.time.step import step_time
from peakward.prediction.traffic import compulsory_bytes
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError

from .measured_h200 import calibrated, study


def case(accumulate=1, **configuration):
    return ModelCase(
        model=model("small"),
        workload=Workload(batch_size=4, seq_len=512, accumulate=accumulate),
        configuration=Configuration(**{"cuda_graphs": True, **configuration}),
        device="cuda",
    )


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_host_copies_each_batch_and_replays_once(accumulate):
    made = case(accumulate)
    graph = op_graph(made)
    expected = REPLAY + dispatch.OPERATOR * 2 * accumulate
    assert calls(made, graph, "forward") == pytest.approx(expected)
    assert calls(made, graph, "backward") == calls(made, graph, "optimizer") == 0


@pytest.mark.parametrize("pass_", ["prefill", "decode"])
def test_of_a_pass_with_a_cache_the_ids_alone_are_copied(pass_):
    """Keys and values are written to the cache in the graph."""
    made = case()
    made = msgspec.structs.replace(made, workload=Workload(batch_size=4, seq_len=512, pass_=pass_))
    assert calls(made, op_graph(made), "forward") == pytest.approx(REPLAY + dispatch.OPERATOR)


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("seq_len", [512, 4096])
def test_a_captured_decode_step_takes_its_floor_and_what_its_launches_cost(batch_size, seq_len):
    """Weights and cache are read once; every operator beyond costs some launches (H200)."""
    made = msgspec.structs.replace(
        case(precision="bf16", attention="sdpa"),
        model=model("2.7B"),
        workload=Workload(batch_size=batch_size, seq_len=seq_len, pass_="decode"),
    )
    found, on = step_time(made, calibrated()), calibrated()
    moved_s = compulsory_bytes(made)["forward"] / calibrated().products["bf16"].bytes_per_s
    n_calls = sum(each.count for each in op_graph(made).operators)
    assert found.bound == "device"
    assert moved_s < found.step_s.estimate < 1.05 * moved_s + 2 * n_calls * on.traffic.launch_s


def test_a_step_that_the_host_held_up_becomes_the_device_s():
    eager, captured = (
        step_time(case(precision="bf16", attention="sdpa", cuda_graphs=each), calibrated())
        for each in (False, True)
    )
    assert (eager.bound, captured.bound) == ("host", "device")
    assert captured.step_s.estimate == pytest.approx(captured.device_s, rel=0.01)


def measured():
    """Seconds of each captured case that was timed against another."""
    found = {}
    for name in ("small", "2.7B"):
        for trial in study(f"run-{name}").trials:
            for pair in trial.pairs:
                found.setdefault(trial.base, []).append(pair.base_s)
                found.setdefault(trial.candidate, []).append(pair.candidate_s)
    return {made: median(each) for made, each in found.items() if made.configuration.cuda_graphs}


def test_captured_steps():
    """All but those of compiled blocks in fp8: eager and compiled, under three forms of AdamW."""
    errors = []
    for made, measured_s in measured().items():
        try:
            predicted = step_time(made, calibrated())
        except PeakwardError:
            assert made.configuration.precision == "fp8"
            continue
        assert predicted.bound == "device"
        errors.append(abs(predicted.step_s.estimate / measured_s - 1))
    assert len(errors) == 26
    assert median(errors) < 0.02
    assert max(errors) < 0.11
