"""Pieces of code, planned, read and held against each other."""

import pytest

from peakward.records.case import MicroCase
from peakward.records.measurement import Interval
from peakward.studies import pieces
from peakward.studies.pieces import MAX_STEPS, Timed
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope


def case(piece="torch", *sizes, **fields):
    given = {"subject": "softmax", "device": "cuda"} | fields
    return MicroCase(piece=piece, sizes=sizes or (10, 100), **given)


@pytest.fixture
def timed(measure, setting):
    def make(piece="torch", factor=1.0, status="ok", **fields):
        here = setting()
        ((found, protocol),) = pieces.planned(here, [case(piece, **fields)])
        measured = measure(found, protocol, here.environment, status, factor=factor)
        return Timed(case=found, measurement=measured)

    return make


def test_a_piece_is_run_for_as_long_as_its_scope_says(setting):
    (_, small), (_, large), (_, asked) = (
        next(pieces.planned(setting(scope), [case()]))
        for scope in ("small", "corners", Scope("small", max_timed_s=2.0))
    )
    assert (small.max_timed_s, large.max_timed_s, asked.max_timed_s) == (0.25, 1.0, 2.0)
    assert small.max_steps == large.max_steps == MAX_STEPS


def test_figures_of_a_piece(timed):
    found = timed("three passes")
    assert found.passes == 8
    assert found.median_s == pytest.approx(4e-6)
    assert found.bytes_per_s == pytest.approx(2 * 4000 / 4e-6)
    assert found.flops_per_s == pytest.approx(2000 / 4e-6)


def test_of_a_piece_that_failed_nothing_is_known():
    missing = Timed(case=case(), measurement=None)
    assert (missing.work, missing.passes, missing.median_s) == (None, None, None)
    assert (missing.bytes_per_s, missing.flops_per_s) == (None, None)


def test_groups_are_of_what_computes_the_same(timed):
    four = [timed("torch"), timed("online"), timed("torch", precision="bf16"), timed("compiled")]
    assert [[each.case.piece for each in group] for group in pieces.groups(four)] == [
        ["torch", "online", "compiled"],
        ["torch"],
    ]


def test_a_plan_is_read_in_its_order(setting, timed):
    here = setting()
    plan = tuple(pieces.planned(here, [case("online"), case("torch")]))
    known = timed("torch").measurement
    found = pieces.read(plan, Readings([known]))
    assert [(each.case.piece, each.measurement) for each in found] == [
        ("online", None),
        ("torch", known),
    ]


def test_a_comparison_gives_the_ends_that_intervals_allow(timed, figures):
    (said,) = pieces.compared("here", timed("three passes"), timed("torch"))
    assert said.text == (
        "here: three passes takes 4.00× the time of torch (3.92× to 4.08× within one process of each)."
    )
    found = figures(said)
    assert found["least"] == pytest.approx(4 * 0.99 / 1.01)
    assert found["most"] == pytest.approx(4 * 1.01 / 0.99)


def test_where_intervals_overlap_none_is_called_slower(timed):
    first, second = timed("torch"), timed("compiled", factor=1.01)
    assert isinstance(second.time, Interval)
    (said,) = pieces.compared("here", second, first)
    assert said.text == (
        "here: compiled takes 1.01× the time of torch, not told apart by intervals within one process of "
        "each."
    )


def test_nothing_is_compared_with_what_failed(timed):
    assert pieces.compared("here", timed("torch", status="oom"), timed("online")) == ()
    assert pieces.compared("here", None, timed("online")) == ()


def test_a_share_over_100_percent_is_flagged(timed, calibration):
    of = calibration("cuda")
    quick = timed("torch", factor=1e-6)
    assert pieces.copy_share(quick, of) > 1
    (note,) = pieces.over_copy([quick, timed("online")], of)
    assert note.startswith("A share over 100% (softmax 10 × 100): ")
    assert pieces.over_copy([timed("online")], of) == ()
