"""Levers as steps."""

from peakward.levers.catalogue import lever
from peakward.tune.lever_stack import LeverStack

from .world import BASE, configured


def stack(*names):
    return LeverStack(base=BASE, levers=tuple(lever(name) for name in names))


def names(one):
    return [each.name for each in one.levers]


def test_each_rung_stands_on_those_below_it():
    found = stack("bf16", "cuda-graphs")
    assert found.cases == (
        BASE,
        configured(precision="bf16"),
        configured(precision="bf16", cuda_graphs=True),
    )
    assert found.top == found.cases[-1]
    (bf16, graphs) = found.steps
    assert bf16 == (lever("bf16"), BASE, found.cases[1])
    assert graphs == (lever("cuda-graphs"), found.cases[1], found.top)


def test_a_ladder_without_levers_is_its_base():
    assert stack().cases == (BASE,)
    assert stack().steps == ()


def test_what_overwrites_a_rung_takes_its_place():
    found = stack("tf32", "cuda-graphs").in_place(lever("bf16"))
    assert names(found) == ["bf16", "cuda-graphs"]
    assert found.top == configured(precision="bf16", cuda_graphs=True)


def test_what_overwrites_nothing_goes_on_top():
    assert names(stack("tf32").in_place(lever("sdpa"))) == ["tf32", "sdpa"]


def test_on_top_leaves_out_what_is_overwritten():
    assert names(stack("tf32", "cuda-graphs").on_top(lever("bf16"))) == ["cuda-graphs", "bf16"]


def test_rungs_are_taken_out_and_off():
    whole = stack("bf16", "cuda-graphs", "sdpa")
    assert names(whole.without({"cuda-graphs"})) == ["bf16", "sdpa"]
    assert names(whole.first(1)) == ["bf16"]
