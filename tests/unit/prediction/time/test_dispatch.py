"""Units of the host's time, counted by hand."""

from statistics import median
from typing import get_args

import msgspec
import pytest
import torch
from torch import nn

from peakward.lab.models.module_capture import capture_module
from peakward.models.presets import model
from peakward.prediction.operators.compiled_module.step import compiled_step
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time import dispatch
from peakward.prediction.time.dispatch import (
    CALL,
    FORWARD_SHARE,
    IN_A_CALL,
    LAUNCH,
    MODULE,
    NODE,
    NODES_OF_AN_OPERATOR,
    OPERATOR,
    OPTIMIZER,
    PARAMETER,
    RECOMPUTED,
    REPLAY,
    calls,
    captured_calls,
    compiled_calls,
    compiled_module_calls,
    module_calls,
)
from peakward.prediction.time.step import step_time
from peakward.prediction.traffic import compulsory_bytes
from peakward.records.case import Configuration, ModelCase, Optimizer, Workload
from peakward.records.op_graph import OpGraph

from .measured_h200 import calibrated, compiled_steps, study
from .round_device import case, operator, tensor

X = tensor(8, 8)
TWO_LAYERS = msgspec.structs.replace(model("small"), n_layers=2)
TEN_AND_TWENTY = OpGraph(
    operators=(
        operator("mm", [X, X], [X], count=7),
        operator("add", [X, X], [X], count=3),
        operator("mm", [X, X], [X], "backward", count=20),
    )
)


def units(made, phase, graph=TEN_AND_TWENTY):
    return calls(made, graph, phase)


def test_operators_and_blocks():
    assert units(case(TWO_LAYERS), "forward") == pytest.approx(10 * 1.44 + 2 * 17)
    assert units(case(TWO_LAYERS), "backward") == pytest.approx(20 * 1.44 + 2 * 58)


def test_every_micro_batch_goes_through_the_blocks():
    assert units(case(TWO_LAYERS, accumulate=3), "forward") == pytest.approx(14.4 + 6 * 17)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("adamw-foreach", 290 + 75 * 1.2),
        ("adamw-fused", 120 + 75 * 0.45),
        ("adamw-loop", 100 + 75 * 22),
    ],
)
def test_an_optimisers_step_and_its_tensors(optimizer, expected):
    """Of 12 blocks with four matrices and two norms, and of embedding, last norm and head."""
    found = units(case("small", optimizer=optimizer), "optimizer")
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mode", "in_all", "in_forward"),
    [
        ("every-block", 12 * 87 + 12 * 87, 0.37),
        ("sqrt", 3 * 87 + 12 * 87, 0.37),  # runs of ⌈√12⌉ = 4
        ("selective", 12 * 87 + 12 * 350, 0.5),
    ],
)
def test_recomputation_costs_both_passes(mode, in_all, in_forward):
    added = {
        phase: units(case("small", checkpointing=mode), phase) - units(case("small"), phase)
        for phase in ("forward", "backward")
    }
    assert added["forward"] == pytest.approx(in_forward * in_all)
    assert sum(added.values()) == pytest.approx(in_all)


def test_without_gradients_nothing_is_recomputed():
    alone, kept = (case("small", pass_="forward", checkpointing=m) for m in ("none", "selective"))
    assert units(kept, "forward") == units(alone, "forward")


def test_every_setting_has_its_units():
    assert set(FORWARD_SHARE) == set(RECOMPUTED) == {"sqrt", "every-block", "selective"}
    assert set(OPTIMIZER) == set(get_args(Optimizer))


def test_the_operators_counted_are_the_steps():
    made = case("small", pass_="forward")
    graph = op_graph(made)
    n_calls = sum(each.count for each in graph.operators)
    assert calls(made, graph, "forward") == pytest.approx(1.44 * n_calls + 12 * 17)


# A captured step: who issues it, and the steps that were measured while an H200 was tuned.


def captured_case(accumulate=1, **configuration):
    return ModelCase(
        model=model("small"),
        workload=Workload(batch_size=4, seq_len=512, accumulate=accumulate),
        configuration=Configuration(**{"cuda_graphs": True, **configuration}),
        device="cuda",
    )


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_host_copies_each_batch_and_replays_once(accumulate):
    made = captured_case(accumulate)
    graph = op_graph(made)
    expected = REPLAY + dispatch.OPERATOR * 2 * accumulate
    assert captured_calls(made, graph, "forward") == pytest.approx(expected)
    assert captured_calls(made, graph, "backward") == captured_calls(made, graph, "optimizer") == 0


@pytest.mark.parametrize("pass_", ["prefill", "decode"])
def test_of_a_pass_with_a_cache_the_ids_alone_are_copied(pass_):
    """Keys and values are written to the cache in the graph."""
    made = captured_case()
    made = msgspec.structs.replace(made, workload=Workload(batch_size=4, seq_len=512, pass_=pass_))
    assert captured_calls(made, op_graph(made), "forward") == pytest.approx(
        REPLAY + dispatch.OPERATOR
    )


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("seq_len", [512, 4096])
def test_a_captured_decode_step_takes_its_floor_and_what_its_launches_cost(batch_size, seq_len):
    """Weights and cache are read once; every operator beyond costs some launches (H200)."""
    made = msgspec.structs.replace(
        captured_case(precision="bf16", attention="sdpa"),
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
        step_time(captured_case(precision="bf16", attention="sdpa", cuda_graphs=each), calibrated())
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
    """All but those in fp8, whose layers have had other kernels since: eager and compiled, under three
    forms of AdamW."""
    errors = []
    for made, measured_s in measured().items():
        if made.configuration.precision == "fp8":
            continue
        predicted = step_time(made, calibrated())
        assert predicted.bound == "device"
        errors.append(abs(predicted.step_s.estimate / measured_s - 1))
    assert len(errors) == 24
    assert median(errors) < 0.02
    assert max(errors) < 0.11


# What the host needs for a compiled step, by hand and as measured on an H200's host.


def compiled_case(pass_="train_step", **workload):
    return ModelCase(
        model=model("small"),
        workload=Workload(**{"batch_size": 4, "seq_len": 512, "pass_": pass_, **workload}),
        configuration=Configuration(precision="bf16", attention="sdpa", compile="default"),
        device="cuda",
    )


def compiled_units(made, phase):
    return compiled_calls(made, op_graph(made), phase)


def test_a_forward_pass_by_hand():
    """11 kernels of each of 12 blocks, 2 of the readout; 11 operators look the ids up and make
    cosines and sines."""
    expected = LAUNCH * (12 * 11 + 2) + 13 * CALL["forward"] + dispatch.OPERATOR * 11
    assert compiled_units(compiled_case("forward"), "forward") == pytest.approx(expected)


def test_micro_batches_are_called_one_after_another():
    twice = compiled_units(compiled_case(accumulate=2), "forward")
    assert twice == pytest.approx(2 * compiled_units(compiled_case(), "forward"))


def test_gradients_of_further_micro_batches_are_added_by_eager_code():
    """To each of 12 · 6 + 3 parameters, and to the loss."""
    once, twice = (
        compiled_units(compiled_case(), "backward"),
        compiled_units(compiled_case(accumulate=2), "backward"),
    )
    assert twice == pytest.approx(2 * once + dispatch.OPERATOR * (12 * 6 + 3 + 1))


def test_the_optimizer_is_eager():
    made = compiled_case()
    assert compiled_units(made, "optimizer") == dispatch.calls(made, op_graph(made), "optimizer")


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


# The host's costs of a captured module.


class Named(nn.Module):
    """Two linear layers in a row, of which the first is compiled."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.second = nn.Linear(8, 8)

    def forward(self, x):
        return self.second(self.first(x))


def test_a_compiled_part_is_a_call_with_its_launches_and_parameters():
    """A product and a loop forward; a loop, a product and a bias's sum backward, for the input needs none."""
    module = Named()
    found = capture_module(
        module,
        (torch.randn(4, 8),),
        pass_="train_step",
        loss=lambda y: y.sum(),
        compiled=[module.first],
    )
    step = compiled_step(found)
    assert (step.n_launched["forward"], step.n_eager["forward"]) == (2, 2)
    assert step.n_launched["backward"] == 3
    fewer = 2 - IN_A_CALL
    assert compiled_module_calls(found, step, "forward") == pytest.approx(
        CALL["forward"] + 2 * LAUNCH + fewer * PARAMETER["forward"] + 2 * OPERATOR + MODULE
    )
    assert compiled_module_calls(found, step, "backward") == pytest.approx(
        CALL["backward"]
        + 3 * LAUNCH
        + fewer * PARAMETER["backward"]
        + step.n_eager["backward"] * OPERATOR
        + 2 * NODES_OF_AN_OPERATOR * NODE
    )
    assert compiled_module_calls(found, step, "optimizer") == module_calls(found, "optimizer")


def test_each_operator_module_and_node_costs_its_own():
    """Two linear layers in a Sequential, which is the module itself and not counted: two calls."""
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    found = capture_module(module, (torch.randn(4, 8),), pass_="train_step", loss=lambda y: y.sum())
    totals = found.graph.totals(lambda each: each.phase)
    n_forward, n_backward = (totals[phase].n_calls for phase in ("forward", "backward"))
    assert n_forward == 3, "two products and the sum"
    assert module_calls(found, "forward") == pytest.approx(3 * OPERATOR + 2 * MODULE)
    nodes = 2 * 2 + 1 + 4  # Products and what turns their weights, the sum; and for each parameter.
    assert module_calls(found, "backward") == pytest.approx(n_backward * OPERATOR + nodes * NODE)
    assert module_calls(found, "optimizer") == pytest.approx(290 + 1.2 * 4), "four tensors"


def test_what_torch_carries_out_by_other_operators_costs_their_calls():
    def softmaxed(operator):
        class Weights(nn.Module):
            def forward(self, x):
                return operator(x, -1, *([False] if operator is torch.ops.aten._softmax else []))

        found = capture_module(Weights(), (torch.zeros(2, 4, 8, 8),), pass_="forward")
        return module_calls(found, "forward")

    plain, safe = softmaxed(torch.ops.aten._softmax), softmaxed(torch.ops.aten._safe_softmax)
    assert safe - plain == pytest.approx(4 * OPERATOR)


def test_a_repeated_tensor_costs_the_host_more_than_a_sum():
    class Made(nn.Module):
        def __init__(self, make):
            super().__init__()
            self.make = make

        def forward(self, x):
            return self.make(x)

    makes = (lambda x: x + 1, lambda x: x.repeat(2, 1), lambda x: torch.stack([x, x]))
    added, repeated, stacked = (
        module_calls(capture_module(Made(each), (torch.zeros(4, 8),)), "forward") for each in makes
    )
    assert repeated - added == pytest.approx(4 * OPERATOR)
    assert stacked - added == pytest.approx(OPERATOR)


@pytest.mark.parametrize(("n", "n_calls"), [(4096, 4), (4097, 10)])
def test_a_sort_costs_the_host_by_what_carries_it_out(n, n_calls):
    """One block in place, or CUB's passes, which are launched one by one."""

    class Sorted(nn.Module):
        def forward(self, x):
            return torch.sort(x).values

    found = capture_module(Sorted(), (torch.zeros(n, dtype=torch.int64),))
    assert module_calls(found, "forward") == pytest.approx(n_calls * OPERATOR)
