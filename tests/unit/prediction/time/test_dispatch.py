"""Units of the host's time, counted by hand."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time.dispatch import FORWARD_SHARE, OPTIMIZER, RECOMPUTED, calls
from peakward.records.op_graph import OpGraph

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
    assert set(OPTIMIZER) == {"adamw-foreach", "adamw-fused", "adamw-loop", "adamw-triton"}


def test_the_operators_counted_are_the_steps():
    made = case("small", pass_="forward")
    graph = op_graph(made)
    n_calls = sum(each.count for each in graph.operators)
    assert calls(made, graph, "forward") == pytest.approx(1.44 * n_calls + 12 * 17)
