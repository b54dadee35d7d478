"""The grid of `roofline`."""

import msgspec

from peakward.records.op_graph import OpGraph
from peakward.studies.roofline.grid import grid, plan, refusals, stated
from peakward.studies.scope import Scope, micro


def axes(setting):
    cases = [case for case, _ in plan(setting)]
    return (
        sorted({case.configuration.precision for case in cases}),
        sorted({fusion.name for _, fusion in grid(setting)}),
        sorted({case.workload.batch_size for case in cases}),
    )


def test_the_corners_are_two_precisions_three_fusions_and_three_batches(setting):
    here = setting()
    assert axes(here) == (
        ["bf16-mixed", "fp32"],
        ["compiled", "eager", "fused attention"],
        [1, 4, 16],
    )
    assert {case.workload.pass_ for case, _ in plan(here)} == {"train_step"}
    assert {case.model.name for case, _ in plan(here)} == {"small"}


def test_the_full_grid_has_both_ends_of_the_sizes(setting):
    assert {case.model.name for case, _ in plan(setting("full"))} == {"small", "2.7B"}


def test_a_cpu_compiles_nothing_and_says_why(setting):
    here = setting("small", "cpu")
    assert axes(here)[1] == ["eager", "fused attention"]
    assert "Not run: compiled steps" in refusals(here)[0]
    assert refusals(setting()) == ()


def test_what_the_user_asks_for_prevails(setting):
    scope = Scope("corners", models=(micro(),), batch_size=3, precisions=("tf32",), seq_lens=(64,))
    here = setting(scope)
    assert axes(here) == (["tf32"], ["compiled", "eager", "fused attention"], [3])
    assert {case.workload.seq_len for case, _ in plan(here)} == {64}


def test_what_has_no_closed_form_is_run_and_said_to_have_no_places(setting):
    experts = msgspec.structs.replace(micro(), name="experts", n_experts=4, n_active_experts=2)
    here = setting(Scope("small", models=(experts,)), "cpu")
    assert len(plan(here)) == 8
    assert refusals(here)[1].startswith("Without places: expected a dense model")


def test_an_old_gpu_has_its_own_operators_or_none(setting):
    here = setting()
    (case, _), *_ = grid(here)
    assert isinstance(stated(case, here), OpGraph)
    volta = msgspec.structs.replace(here.environment, compute_capability="7.0")
    old = msgspec.structs.replace(here, environment=volta)
    assert "expected a compute capability" in stated(case, old)
